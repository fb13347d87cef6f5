package main

import (
	"context"
	"fmt"

	"underwrite/app/local"
)

type treeCommand struct {
	Dir string `arg:"" type:"path" name:"DIR" help:"The directory. It must not change meanwhile."`
}

// Help is shown with --help.
func (*treeCommand) Help() string {
	return `Prints the tree by which receipts name the content of a directory: the id that git gives it in a repository with SHA-256 objects. Nothing is left out, so a directory with a .git in it has none.

Example:
  underwrite tree src`
}

// Run prints the tree.
func (c *treeCommand) Run(ctx context.Context) error {
	tree, err := local.Tree(ctx, c.Dir)
	if err == nil {
		_, err = fmt.Println(tree)
	}
	return err
}
