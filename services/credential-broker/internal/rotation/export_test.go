package rotation

import "slices"

// Columns are the sealed columns that a rotation knows, and those of their versions.
func Columns() (all []string) {
	for _, f := range fields {
		all = append(all, f.table+"."+f.sealed, f.table+"."+f.version)
	}
	slices.Sort(all)
	return all
}
