package kvcache_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

func TestSavedSequencesGoOnInAnotherCache(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 6, 7)
	ok(t, cache.Fork(1, 2, -1))
	file, err := cache.Save("m", 1, 2)
	ok(t, err)
	path := filepath.Join(t.TempDir(), "two.kvc")
	size, err := cache.SaveFile(path, "m", 1, 2)
	ok(t, err)
	read, err := os.ReadFile(path)
	ok(t, err)
	if size != int64(len(file)) || !bytes.Equal(read, file) {
		t.Errorf("%d bytes in the file, %d in memory", size, len(file))
	}
	library := load(t)
	said, err := library.DescribeStateFile(path)
	ok(t, err)
	again, err := library.DescribeState(file)
	ok(t, err)
	fingerprint, err := cache.Plan().Fingerprint()
	ok(t, err)
	if said != again || !strings.Contains(said, fingerprint) || !strings.Contains(said, `"model_id": "m"`) {
		t.Errorf("%s", said)
	}

	other := newCache(t, small())
	ok(t, other.LoadFile(path, kvcache.LoadOptions{ModelID: "m"}, 5, 6))
	ok(t, other.Load(file, kvcache.LoadOptions{}, 7, 8))
	stats, err := other.Stats()
	ok(t, err)
	if other.TotalLength() != 24 || stats.TokensAppended != 0 {
		t.Errorf("%d tokens, %d of them appended", other.TotalLength(), stats.TokensAppended)
	}
	v := make([]float32, 4*6)
	ok(t, other.DebugGetLayer(5, 1, 0, 6, nil, kvcache.Of(v, 6, 1, 4)))
	if v[0] != 7 || v[23] != 7 {
		t.Errorf("%v", v)
	}
	is(t, other.Load(file, kvcache.LoadOptions{}, 7, 8), kvcache.ErrAlreadyExists)
	is(t, other.Load(file, kvcache.LoadOptions{ModelID: "n"}, 9, 10), kvcache.ErrInvalidArgument)
	is(t, other.Load(file[:len(file)-1], kvcache.LoadOptions{}, 9, 10), kvcache.ErrCorrupt)
	is(t, other.Load(nil, kvcache.LoadOptions{}), kvcache.ErrInvalidArgument)
	is(t, other.LoadFile(path+"x", kvcache.LoadOptions{}, 9, 10), kvcache.ErrIO)
	is(t, other.LoadFile("", kvcache.LoadOptions{}, 9, 10), kvcache.ErrInvalidArgument)
	_, err = cache.SaveFile("", "", 1)
	is(t, err, kvcache.ErrInvalidArgument)
	_, err = cache.Save("", 77)
	is(t, err, kvcache.ErrNotFound)
	ok(t, other.Check())
}

func TestPagesMoveAsBytesIntoReservedTokens(t *testing.T) {
	from, to := newCache(t, small()), newCache(t, small())
	ok(t, from.AddSeq(1))
	grow(t, from, 1, 6, 7)
	ok(t, to.AddSeq(2))
	ok(t, to.Reserve(2, 6))
	info, err := from.Plan().Info()
	ok(t, err)
	for layer := 0; layer < int(info.NumLayers); layer++ {
		data, err := from.ExportPages(layer, pagesOf(t, from, 1))
		ok(t, err)
		ok(t, to.ImportPages(layer, pagesOf(t, to, 2), data))
	}
	v := make([]float32, 4*6)
	ok(t, to.DebugGetLayer(2, 1, 0, 6, nil, kvcache.Of(v, 6, 1, 4)))
	if v[0] != 7 || v[23] != 7 {
		t.Errorf("%v", v)
	}
	if _, err := from.ExportPages(0, []int64{99}); !errors.Is(err, kvcache.ErrOutOfRange) {
		t.Errorf("%v", err)
	}
	if err := to.ImportPages(0, []int64{0, 1}, make([]byte, 3)); !errors.Is(err, kvcache.ErrShape) {
		t.Errorf("%v", err)
	}
	if err := to.Reserve(77, 1); !errors.Is(err, kvcache.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func pagesOf(t *testing.T, cache *kvcache.Cache, seq int64) []int64 {
	pages, err := cache.SeqPages(seq, 0)
	ok(t, err)
	var ids []int64
	for _, id := range pages {
		ids = append(ids, int64(id))
	}
	return ids
}

// C would take what stands before a NUL byte for the whole: another file, or another model's.
func TestTextsWithANulByteAreRefused(t *testing.T) {
	library, cache := load(t), newCache(t, small())
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 6, 7)
	folder := t.TempDir()
	path := filepath.Join(folder, "a\x00.kvc")
	_, saved := cache.SaveFile(path, "", 1)
	_, named := cache.SaveFile(filepath.Join(folder, "b.kvc"), "model\x00other", 1)
	_, described := library.DescribeStateFile(path)
	_, config := library.ConfigFromHF([]byte("{}\x00"))
	for what, err := range map[string]error{
		"SaveFile": saved, "SaveFile's model": named, "DescribeStateFile": described, "ConfigFromHF": config,
		"LoadFile":        cache.LoadFile(path, kvcache.LoadOptions{}, 2),
		"Load's model":    cache.Load([]byte{1}, kvcache.LoadOptions{ModelID: "a\x00b"}, 2),
		"AttachFileTier":  cache.AttachFileTier(folder+"\x00", 1<<30, kvcache.TierOptions{}),
		"AttachRedisTier": cache.AttachRedisTier("host:1\x00", kvcache.RedisTierOptions{}),
		"SetModulePath":   library.SetModulePath("/a\x00"),
		"Redis's user":    cache.AttachRedisTier("host:1", kvcache.RedisTierOptions{Username: "a\x00"}),
	} {
		is(t, err, kvcache.ErrInvalidArgument)
		if err != nil && !strings.Contains(err.Error(), "NUL byte") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if left, _ := os.ReadDir(folder); len(left) != 0 {
		t.Errorf("files were written: %v", left)
	}
}
