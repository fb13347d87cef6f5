package demo

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// The project and what each pull request writes over it.
//
//go:embed all:project all:pulls
var content embed.FS

// A pull is one pull request of the demo and how it must end.
type pull struct {
	dir        string // below pulls/
	branch     string
	author     string
	title      string
	conclusion string
	titleStart string // how the check run's title must begin
	receipt    bool   // whether there must be an authentic receipt
}

// pulls are opened in this order, so that their numbers are 1 to 4.
var pulls = []pull{
	{dir: "discount", branch: "discount", author: "mona", title: "Add a discount in percent", conclusion: "success", titleStart: "passed", receipt: true},
	{dir: "rounding", branch: "round-to-five", author: "mona", title: "Round prices to five cents", conclusion: "failure", titleStart: "exit 1, expected 0", receipt: true},
	{dir: "curious", branch: "look-around", author: "hubot", title: "Add a test that looks around", conclusion: "failure", titleStart: "exit 1, expected 0", receipt: true},
	{dir: "forever", branch: "patience", author: "hubot", title: "Add a patient test", conclusion: "timed_out", titleStart: "timed out after"},
}

// files reads an embedded directory as repository path → content. Each
// replacement's key stands in the files as @KEY@.
func files(dir string, replacements map[string]string) (map[string]string, error) {
	out := map[string]string{}
	err := fs.WalkDir(content, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := content.ReadFile(name)
		if err != nil {
			return err
		}
		text := string(b)
		for key, value := range replacements {
			text = strings.ReplaceAll(text, "@"+key+"@", value)
		}
		out[strings.TrimPrefix(name, path.Clean(dir)+"/")] = text
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the demo's %s: %w", dir, err)
	}
	return out, nil
}
