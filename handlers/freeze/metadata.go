package freeze

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"underwrite/attest"
)

// Shapes of metadata (protocol, "Frozen target"). A component of a repository
// name becomes part of a file name, hence the length.
var (
	repoShape = regexp.MustCompile(`\A[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}\z`)
	shaShape  = regexp.MustCompile(`\A[0-9a-f]{40}\z`)
)

// checkMetadata requires what a target document needs, of the pull request
// that was asked for. GitHub answers under a new name for a renamed repository:
// that is another name in every session and policy, so it is refused here.
func checkMetadata(pr PullRequest, repo string, number int64) error {
	switch {
	case pr.Repo != repo:
		return fmt.Errorf("the pull request belongs to %q, not to %q", pr.Repo, repo)
	case pr.Number != number || number < 1 || number > attest.MaxInteger:
		return fmt.Errorf("the pull request has number %d, not %d", pr.Number, number)
	case pr.State != "open" && pr.State != "closed":
		return fmt.Errorf("the pull request has the unknown state %q", pr.State)
	case !shaShape.MatchString(pr.BaseSHA) || !shaShape.MatchString(pr.HeadSHA):
		return fmt.Errorf("the pull request's commits %q and %q are no SHA-1 object ids", pr.BaseSHA, pr.HeadSHA)
	case pr.ChangedFiles < 0 || pr.ChangedFiles > attest.MaxInteger:
		return fmt.Errorf("the pull request changes %d files", pr.ChangedFiles)
	case strings.TrimSpace(pr.HeadRef) == "" || !utf8.ValidString(pr.HeadRef) || strings.ContainsRune(pr.HeadRef, 0):
		return fmt.Errorf("the pull request's head branch has the name %q", pr.HeadRef)
	case pr.MergedAt != nil && !isTime(*pr.MergedAt):
		return fmt.Errorf("the pull request was merged at %q, which is no UTC time", *pr.MergedAt)
	}
	return checkHeadRepo(pr)
}

func checkHeadRepo(pr PullRequest) error {
	if pr.HeadRepo == nil && pr.HeadRepoID == nil {
		return nil // the fork was deleted
	}
	if pr.HeadRepo == nil || pr.HeadRepoID == nil {
		return errors.New("the pull request has only one of head repository and its id")
	}
	if !repoShape.MatchString(*pr.HeadRepo) || *pr.HeadRepoID < 1 || *pr.HeadRepoID > attest.MaxInteger {
		return fmt.Errorf("the pull request has the head repository %q with id %d", *pr.HeadRepo, *pr.HeadRepoID)
	}
	return nil
}

func isTime(s string) bool {
	_, err := attest.ParseTimestamp(s)
	return err == nil
}

// same compares two readings of the metadata, pointers by what they point to.
func same(a, b PullRequest) bool {
	if !equal(a.MergedAt, b.MergedAt) || !equal(a.HeadRepo, b.HeadRepo) || !equal(a.HeadRepoID, b.HeadRepoID) {
		return false
	}
	a.MergedAt, a.HeadRepo, a.HeadRepoID = b.MergedAt, b.HeadRepo, b.HeadRepoID
	return a == b
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// newTarget fills in what the metadata says.
func newTarget(pr PullRequest) attest.Target {
	return attest.Target{
		Version: 1, Kind: "github_pr",
		Repo: pr.Repo, Number: pr.Number, State: pr.State, MergedAt: pr.MergedAt,
		BaseSHA: pr.BaseSHA, HeadSHA: pr.HeadSHA,
		HeadRepoID: pr.HeadRepoID, HeadRepo: pr.HeadRepo, HeadRef: pr.HeadRef,
	}
}
