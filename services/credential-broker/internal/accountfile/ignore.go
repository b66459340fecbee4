package accountfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ignore makes .gitignore beside the file name it and what belongs to it. What is in it
// already stays; whoever ignores everything needs no more.
func (f *File) ignore(mine []string) error {
	folder := filepath.Dir(f.path)
	name := filepath.Join(folder, ".gitignore")
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	there := strings.Split(strings.ReplaceAll(string(text), "\r", ""), "\n")
	wanted := []string{"/" + literal(filepath.Base(f.path)) + "*"}
	for _, other := range mine {
		if abs, err := filepath.Abs(other); err == nil && other != "" && filepath.Dir(abs) == folder {
			wanted = append(wanted, "/"+literal(filepath.Base(abs)))
		}
	}
	wanted = slices.DeleteFunc(wanted, func(line string) bool { return slices.Contains(there, line) })
	if len(wanted) == 0 || slices.Contains(there, "*") {
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

// literal escapes what has a meaning in a pattern.
func literal(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, " ", `\ `).Replace(name)
}
