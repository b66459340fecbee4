package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/standalone/internal/backup"
	"signalbox.dev/services/standalone/internal/datadir"
)

// BackupOptions say what to back up, or restore, and where.
type BackupOptions struct {
	// File is the backup. Backup takes a folder, too, and chooses a name in it.
	File string
	// DatabaseURL is a deployment's database as its administrator; if it is empty, the database is
	// the one in the data folder.
	DatabaseURL conf.Secret
	Data        string
	// KeyFile and Keys open restored credentials. In a data folder the key file is the folder's own.
	KeyFile string
	Keys    admin.Keys
	// WithoutKey restores credentials that no key at hand opens.
	WithoutKey bool
	Progress   func(table string) // is called before each table
	Log        *slog.Logger
}

// BackupReport is what Backup and Restore have done.
type BackupReport struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	backup.Manifest
}

func (o *BackupOptions) at(url conf.Secret) backup.Options {
	return backup.Options{AdminURL: url.Reveal(), Migrations: Migrations(), Progress: o.Progress}
}

// Backup writes a backup, whether the Signalbox is running or not. It changes nothing, and replaces
// no file: until the backup is complete it has a temporary name.
func Backup(ctx context.Context, o BackupOptions) (BackupReport, error) {
	if info, err := os.Stat(o.File); err == nil && info.IsDir() {
		o.File = filepath.Join(o.File, "signalbox-"+time.Now().UTC().Format("20060102T150405Z")+".zip")
	}
	if _, err := os.Lstat(o.File); err == nil {
		return BackupReport{}, fmt.Errorf("%s exists: choose another name, or give a folder", o.File)
	}
	file, err := os.CreateTemp(filepath.Dir(o.File), ".signalbox-backup-*") // mode 0600
	if err != nil {
		return BackupReport{}, fmt.Errorf("create the backup: %w", err)
	}
	r := BackupReport{File: o.File}
	err = o.withDatabase(ctx, func(url conf.Secret, owner *backup.Owner) (err error) {
		r.Manifest, err = backup.Write(ctx, file, o.at(url), owner, admin.KeyNames)
		return err
	})
	if info, failed := file.Stat(); failed == nil {
		r.Bytes = info.Size()
	}
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), o.File)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // the temporary file
		return r, err
	}
	return r, nil
}

// withDatabase calls f with the database to back up, and whose tokens its data folder makes.
func (o *BackupOptions) withDatabase(ctx context.Context, f func(conf.Secret, *backup.Owner) error) error {
	if o.DatabaseURL != "" {
		return f(o.DatabaseURL, nil)
	}
	if !datadir.Holds(o.Data) {
		return fmt.Errorf("there is no Signalbox in %s: give its data folder with --data, or set DATABASE_URL", o.Data)
	}
	dir, err := datadir.Open(o.Data)
	if err != nil {
		return err
	}
	running, alive, err := dir.LockOrRunning(ctx, lockWait)
	if err != nil {
		return err
	}
	defer dir.Unlock()
	who, err := dir.Identity()
	if err != nil {
		return err
	}
	owner := &backup.Owner{Workspace: who.Workspace, Member: who.Member}
	if alive {
		return f(conf.Secret(running.DatabaseURL), owner)
	}
	return withServer(ctx, dir, o.Log, func(url conf.Secret) error { return f(url, owner) })
}

// Restore fills an empty database, or a new data folder, with a backup.
func Restore(ctx context.Context, o BackupOptions) (BackupReport, error) {
	a, r, err := openBackup(ctx, o.File)
	if err != nil {
		return r, err
	}
	defer a.Close()
	if o.DatabaseURL != "" {
		return r, o.restore(ctx, a, o.DatabaseURL)
	}
	dir, err := datadir.Open(o.Data)
	if err != nil {
		return r, err
	}
	_, alive, err := dir.LockOrRunning(ctx, lockWait)
	if err != nil {
		return r, err
	}
	if alive {
		return r, dir.InUse()
	}
	defer dir.Unlock()
	if a.Owner != nil {
		if err := dir.Adopt(a.Owner.Workspace, a.Owner.Member); err != nil {
			return r, err
		}
	}
	o.KeyFile = KeyFile(dir)
	return r, withServer(ctx, dir, o.Log, func(url conf.Secret) error { return o.restore(ctx, a, url) })
}

func (o *BackupOptions) restore(ctx context.Context, a *backup.Archive, url conf.Secret) error {
	return a.Restore(ctx, o.at(url), o.Log, func(ctx context.Context, tx pgx.Tx) error {
		if o.WithoutKey {
			return nil
		}
		if err := o.Keys.OpensAll(ctx, tx, o.KeyFile); err != nil {
			return fmt.Errorf("%w. Nothing was restored. To restore all the same, without the use of these credentials: --without-key", err)
		}
		return nil
	})
}

// CheckBackup verifies a backup, and describes it.
func CheckBackup(ctx context.Context, path string) (BackupReport, error) {
	a, r, err := openBackup(ctx, path)
	if err == nil {
		a.Close()
	}
	return r, err
}

// openBackup verifies a backup. The caller closes it.
func openBackup(ctx context.Context, path string) (*backup.Archive, BackupReport, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, BackupReport{}, err
	}
	a, err := backup.Open(ctx, path)
	if err != nil {
		return nil, BackupReport{}, fmt.Errorf("%s: %w", path, err)
	}
	return a, BackupReport{File: path, Bytes: info.Size(), Manifest: a.Manifest}, nil
}
