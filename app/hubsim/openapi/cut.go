//go:build ignore

// Command cut makes github.json.gz from GitHub's whole OpenAPI description:
// the operations that the embedded description already has, plus those given as
// arguments (METHOD/path), with the components they reach, without prose and
// examples. See README.md beside it.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"
)

const output = "github.json.gz"

type object = map[string]any

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: go run cut.go api.github.com.json [METHOD/path ...]")
	}
	full := read(os.Args[1])
	ops := append(embedded(), os.Args[2:]...)
	cut, err := describe(full, ops)
	if err != nil {
		log.Fatal(err)
	}
	if err := write(cut); err != nil {
		log.Fatal(err)
	}
}

func read(name string) object {
	data, err := os.ReadFile(name)
	if err != nil {
		log.Fatal(err)
	}
	return parse(data)
}

func parse(data []byte) object {
	var doc object
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&doc); err != nil {
		log.Fatal(err)
	}
	return doc
}

// embedded lists the operations of the present description as METHOD/path.
func embedded() []string {
	f, err := os.Open(output)
	if err != nil {
		return nil // the first time there is none
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		log.Fatal(err)
	}
	data, err := io.ReadAll(zr)
	if err != nil {
		log.Fatal(err)
	}
	var ops []string
	for path, item := range parse(data)["paths"].(object) {
		for method := range item.(object) {
			ops = append(ops, strings.ToUpper(method)+path)
		}
	}
	return ops
}

func describe(full object, ops []string) (object, error) {
	paths := object{}
	for _, op := range ops {
		method, path, _ := strings.Cut(op, "/")
		path, method = "/"+path, strings.ToLower(method)
		item, _ := full["paths"].(object)[path].(object)
		if item[method] == nil {
			return nil, fmt.Errorf("the whole description has no %s %s", method, path)
		}
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path].(object)[method] = strip(item[method], "")
	}
	info := full["info"].(object)
	delete(info, "description")
	return object{
		"openapi": full["openapi"], "info": info, "servers": full["servers"],
		"paths": paths, "components": reached(full, paths),
	}, nil
}

// reached collects the components that paths refer to, at any depth.
func reached(full object, paths object) object {
	found := object{}
	todo := refs(paths)
	for len(todo) > 0 {
		kind, name, _ := strings.Cut(strings.TrimPrefix(todo[0], "#/components/"), "/")
		todo = todo[1:]
		if found[kind] == nil {
			found[kind] = object{}
		}
		group := found[kind].(object)
		if group[name] != nil {
			continue
		}
		whole := object{name: full["components"].(object)[kind].(object)[name]}
		group[name] = strip(whole, kind).(object)[name]
		todo = append(todo, refs(group[name])...)
	}
	return found
}

func refs(v any) []string {
	var out []string
	switch v := v.(type) {
	case object:
		if ref, ok := v["$ref"].(string); ok {
			out = append(out, ref)
		}
		for _, e := range v {
			out = append(out, refs(e)...)
		}
	case []any:
		for _, e := range v {
			out = append(out, refs(e)...)
		}
	}
	return out
}

// prose are the keys whose values say nothing to a validator, except below
// "properties", where they are the names of fields.
var prose = []string{"summary", "description", "externalDocs", "x-github", "examples", "example", "x-multi-segment"}

// strip drops prose. A response must have a description: its key is enough.
func strip(v any, key string) any {
	switch v := v.(type) {
	case object:
		out := object{}
		for k, e := range v {
			if key == "properties" || !slices.Contains(prose, k) {
				out[k] = strip(e, k)
			}
			if response, ok := out[k].(object); ok && key == "responses" && response["$ref"] == nil {
				response["description"] = k
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = strip(e, "")
		}
		return out
	default:
		return v
	}
}

func write(doc object) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		return err
	}
	var zipped bytes.Buffer
	zw, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := zw.Write(bytes.TrimSpace(text.Bytes())); err != nil {
		return err
	}
	if err := zw.Close(); err != nil {
		return err
	}
	return os.WriteFile(output, zipped.Bytes(), 0o644)
}
