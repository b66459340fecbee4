package oauth

import "context"

// Opens returns why the token of a grant does not open that a renewal or a sign-out would
// send; nil where it does, or there is none. It changes nothing and asks no provider.
func (k *Keeper) Opens(ctx context.Context, ref Ref) error {
	g, err := k.tables.read(ctx, ref)
	if err != nil {
		return err
	}
	switch {
	case g.RefreshKeyVersion != nil:
		_, err = k.cfg.Vault.Open(ctx, ref.place(refreshField), g.refresh())
	case g.AccessKeyVersion != nil:
		_, err = k.cfg.Vault.Open(ctx, ref.place(accessField), g.access())
	}
	return err
}
