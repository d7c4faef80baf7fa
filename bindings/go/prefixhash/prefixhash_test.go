package prefixhash_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/libkvcache/libkvcache/bindings/go/internal/testlib"
	"github.com/libkvcache/libkvcache/bindings/go/prefixhash"
)

type vector struct {
	Name        string
	BlockTokens int `json:"block_tokens"`
	Salt        string
	Tokens      []int32
	Keys        []struct {
		Type   uint32
		Offset int64
		Data   string
	}
	Root   string
	Hashes []string
}

// vectors are those of the C library's own tests.
func vectors(t *testing.T) []vector {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "tests", "conformance", "vectors", "prefix_hash.json"))
	if os.IsNotExist(err) {
		t.Skip("the module is not inside of its repository")
	}
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []vector }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Cases
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func keysOf(t *testing.T, v vector) []prefixhash.Key {
	var keys []prefixhash.Key
	for _, key := range v.Keys {
		keys = append(keys, prefixhash.Key{Type: key.Type, Offset: key.Offset, Data: unhex(t, key.Data)})
	}
	return keys
}

func texts(hashes []prefixhash.Hash) []string {
	out := []string{}
	for _, hash := range hashes {
		out = append(out, hex.EncodeToString(hash[:]))
	}
	return out
}

func TestKeysAreThoseOfTheLibrary(t *testing.T) {
	cases := vectors(t)
	if len(cases) < 10 {
		t.Fatalf("only %d vectors", len(cases))
	}
	for _, v := range cases {
		salt := unhex(t, v.Salt)
		if root := prefixhash.Root(salt); hex.EncodeToString(root[:]) != v.Root {
			t.Errorf("%s: root %x instead of %s", v.Name, root, v.Root)
		}
		hashes, err := prefixhash.Hashes(v.Tokens, v.BlockTokens, salt, keysOf(t, v)...)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
		}
		if got := texts(hashes); !reflect.DeepEqual(got, v.Hashes) {
			t.Errorf("%s: keys %v instead of %v", v.Name, got, v.Hashes)
		}
	}
}

func TestTokensMayComeInPieces(t *testing.T) {
	random := testlib.Random(t)
	for _, v := range vectors(t) {
		chain, err := prefixhash.NewChain(v.BlockTokens, unhex(t, v.Salt), keysOf(t, v)...)
		if err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		got := []string{}
		for rest := v.Tokens; len(rest) > 0; {
			n := 1 + random.Intn(len(rest))
			got = append(got, texts(chain.Add(rest[:n]...))...)
			rest = rest[n:]
		}
		if !reflect.DeepEqual(got, v.Hashes) {
			t.Errorf("%s: keys %v instead of %v", v.Name, got, v.Hashes)
		}
	}
}

func TestBadInputIsNamed(t *testing.T) {
	for want, call := range map[string]func() error{
		"prefixhash: block of 0 tokens is not in 1..2147483647": func() error {
			_, err := prefixhash.Hashes(nil, 0, nil)
			return err
		},
		"prefixhash: salt of 4097 bytes, at most 4096": func() error {
			_, err := prefixhash.Hashes(nil, 1, make([]byte, 4097))
			return err
		},
		"prefixhash: keys[0]: type 0": func() error {
			_, err := prefixhash.Hashes(nil, 1, nil, prefixhash.Key{})
			return err
		},
		"prefixhash: keys[1]: offset -1 is negative": func() error {
			_, err := prefixhash.Hashes(nil, 1, nil, prefixhash.Key{Type: 1}, prefixhash.Key{Type: 1, Offset: -1})
			return err
		},
	} {
		if err := call(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func ExampleHashes() {
	hashes, _ := prefixhash.Hashes([]int32{5, 5, 5}, 1, nil)
	fmt.Printf("%d keys, the first begins with %x\n", len(hashes), hashes[0][:4])
	// Output: 3 keys, the first begins with d64a92eb
}
