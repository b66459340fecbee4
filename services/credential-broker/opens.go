package credentialbroker

import (
	"context"
	"fmt"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Opens refuses an account whose credential does not open with the keys at hand, before
// something is done that needs it: whoever has named a wrong key is told so, and nothing
// is lost. Where a key service is away the fault is Unavailable.
func (s *Scope) Opens(ctx context.Context, account id.Account) error {
	row, err := s.accounts.store.Get(ctx, s.workspace, account)
	if err != nil {
		return err
	}
	if len(row.Sealed) > 0 {
		_, err = s.accounts.vault.Open(ctx, row.Place(), vault.Sealed{KeyVersion: row.KeyVersion, Bytes: row.Sealed})
	} else {
		err = s.accounts.keeper.Opens(ctx, s.ref(account))
	}
	if !vault.Lasting(err) {
		return err
	}
	f := fault.Wrap(err, fault.Conflict, fmt.Sprintf("the credential of account %s does not open, and nothing was changed: %s", account, vault.Why(err)))
	f.Code = "ACCOUNT_UNUSABLE"
	return f
}
