package evidence

import "testing"

func TestDifference(t *testing.T) {
	const want = `{"action":{"seq":1},"argv":["a","b"],"n":null,"s":"x"}`
	for name, c := range map[string]struct{ got, want string }{
		"number":           {`{"action":{"seq":2},"argv":["a","b"],"n":null,"s":"x"}`, "action.seq differs"},
		"list element":     {`{"action":{"seq":1},"argv":["a","c"],"n":null,"s":"x"}`, "argv.1 differs"},
		"longer list":      {`{"action":{"seq":1},"argv":["a","b","c"],"n":null,"s":"x"}`, "argv differs"},
		"missing":          {`{"action":{"seq":1},"argv":["a","b"],"n":null}`, "s differs"},
		"more":             {`{"action":{"seq":1},"argv":["a","b"],"b":1,"n":null,"s":"x"}`, "b differs"},
		"other type":       {`{"action":[],"argv":["a","b"],"n":null,"s":"x"}`, "action differs"},
		"value for object": {`{"action":1,"argv":["a","b"],"n":null,"s":"x"}`, "action differs"},
		"white space":      {want + "\n", "it is not in canonical form"},
	} {
		if got := difference([]byte(c.got), []byte(want)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := difference([]byte("{"), []byte(want)); got == "" {
		t.Error("malformed JSON has no difference")
	}
}
