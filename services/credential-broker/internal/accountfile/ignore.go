package accountfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ignore has the .gitignore beside the file name it and what belongs to it. Its content stays;
// one that ignores everything is left alone.
func (f *File) ignore(others []string) error {
	folder := filepath.Dir(f.path)
	name := filepath.Join(folder, ".gitignore")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := strings.Split(strings.ReplaceAll(string(text), "\r", ""), "\n")
	wanted := []string{"/" + literal(filepath.Base(f.path)) + "*"}
	for _, other := range others {
		if abs, err := filepath.Abs(other); err == nil && other != "" && filepath.Dir(abs) == folder {
			wanted = append(wanted, "/"+literal(filepath.Base(abs)))
		}
	}
	wanted = slices.DeleteFunc(wanted, func(line string) bool { return slices.Contains(lines, line) })
	if len(wanted) == 0 || slices.Contains(lines, "*") {
		return nil
	}
	add := strings.Join(wanted, "\n") + "\n"
	if len(text) > 0 && text[len(text)-1] != '\n' {
		add = "\n" + add
	}
	file, _, err := f.create(name, os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return err
	}
	_, err = file.WriteString(add)
	return errors.Join(err, file.Close())
}

// literal escapes the special characters of a pattern.
func literal(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, " ", `\ `).Replace(name)
}
