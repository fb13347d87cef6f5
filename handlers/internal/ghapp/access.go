package ghapp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-github/v66/github"
)

// FetchAccess implements freeze.GitHub: it mints a token that can read the
// contents of this one repository, and nothing else. GitHub lets it live for
// an hour.
func (a *App) FetchAccess(ctx context.Context, repo string) (url, authorization string, err error) {
	op := "mint a token to fetch " + repo
	_, name, err := splitRepo(repo)
	if err != nil {
		return "", "", err
	}
	var token *github.InstallationToken
	err = a.asInstallation(ctx, repo, func(id int64, _ *github.Client) (err error) {
		token, _, err = a.app.Apps.CreateInstallationToken(ctx, id, &github.InstallationTokenOptions{
			Repositories: []string{name},
			Permissions:  &github.InstallationPermissions{Contents: github.String("read")},
		})
		return classify(op, err)
	})
	if err != nil {
		return "", "", err
	}
	if err := checkToken(token, repo); err != nil {
		return "", "", &Error{Op: op, Message: err.Error()}
	}
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token.GetToken()))
	return a.webURL + "/" + repo + ".git", "Basic " + basic, nil
}

// checkToken refuses a token that can do more than was asked for. Reading
// metadata comes with every token.
func checkToken(t *github.InstallationToken, repo string) error {
	if s := t.GetToken(); s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the answer has no token")
	}
	raw, err := json.Marshal(t.GetPermissions())
	if err != nil {
		return fmt.Errorf("permissions: %w", err)
	}
	var granted map[string]string
	if err := json.Unmarshal(raw, &granted); err != nil {
		return fmt.Errorf("permissions: %w", err)
	}
	for name, access := range granted {
		if name != "contents" && name != "metadata" || access != "read" {
			return fmt.Errorf("the token is wider than asked for: %s %s", name, access)
		}
	}
	if granted["contents"] == "" {
		return errors.New("the token cannot read contents; the App needs that permission")
	}
	if len(t.Repositories) > 1 || len(t.Repositories) == 1 && !strings.EqualFold(t.Repositories[0].GetFullName(), repo) {
		return errors.New("the token is for another repository")
	}
	return nil
}
