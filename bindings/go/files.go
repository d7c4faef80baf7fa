package kvcache

/*
#include <stdlib.h>
#include "shim_files.h"
*/
import "C"

import (
	"strings"
	"unsafe"
)

// LoadOptions say how a state file is read.
type LoadOptions struct {
	ModelID string  // the name that the file was saved with; "": any
	Convert bool    // rows and states of other float types are converted
	Stream  uintptr // a CUDA stream; 0: the legacy default stream
	// NoPublish: the prefix index gets nothing of the sequences, and shares no page with them: for files of other
	// weights.
	NoPublish bool
}

// cText copies text for C, which would take what stands before a NUL byte for the whole: such a text is refused. The
// caller frees it.
func cText(name, text string) (*C.char, error) {
	if at := strings.IndexByte(text, 0); at >= 0 {
		return nil, invalid("%s = %q holds a NUL byte, at %d of %d bytes", name, text, at, len(text))
	}
	return C.CString(text), nil
}

// optionalText is cText, and nil for "".
func optionalText(name, text string) (*C.char, error) {
	if text == "" {
		return nil, nil
	}
	return cText(name, text)
}

// SaveFile saves sequences as a state file, which appears whole or not at all. What they share is in it once.
// modelID names the model and its weights; "": none. It returns the size of the file.
func (c *Cache) SaveFile(path, modelID string, seqs ...int64) (int64, error) {
	if path == "" {
		return 0, &Error{Status: ErrInvalidArgument, Msg: "path is empty"}
	}
	name, err := cText("path", path)
	if err != nil {
		return 0, err
	}
	defer C.free(unsafe.Pointer(name))
	model, err := optionalText("modelID", modelID)
	if err != nil {
		return 0, err
	}
	defer C.free(unsafe.Pointer(model))
	if err := c.look(); err != nil {
		return 0, err
	}
	defer c.mu.RUnlock()
	var size C.uint64_t
	err = failure(C.shim_seq_save(c.lib.api, c.h, C.size_t(len(seqs)), i64s(seqs), name, nil, 0, model, 0, &size))
	return int64(size), err
}

// Save is SaveFile to memory.
func (c *Cache) Save(modelID string, seqs ...int64) ([]byte, error) {
	model, err := optionalText("modelID", modelID)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(model))
	if err := c.look(); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	save := func(data unsafe.Pointer, size C.size_t, needed *C.uint64_t) error {
		return failure(C.shim_seq_save(c.lib.api, c.h, C.size_t(len(seqs)), i64s(seqs), nil, data, size, model, 0,
			needed))
	}
	var size C.uint64_t
	if err := save(nil, 0, &size); err != nil {
		return nil, err
	}
	file := make([]byte, size)
	if err := save(unsafe.Pointer(&file[0]), C.size_t(size), &size); err != nil {
		return nil, err
	}
	return file, nil
}

// LoadFile adds the sequences of a state file under new ids; none of their tokens has to be computed again.
func (c *Cache) LoadFile(path string, options LoadOptions, seqs ...int64) error {
	if path == "" {
		return &Error{Status: ErrInvalidArgument, Msg: "path is empty"}
	}
	name, err := cText("path", path)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(name))
	return c.load(name, nil, options, seqs)
}

// Load is LoadFile from the bytes of a file.
func (c *Cache) Load(file []byte, options LoadOptions, seqs ...int64) error {
	return c.load(nil, file, options, seqs)
}

func (c *Cache) load(path *C.char, file []byte, options LoadOptions, seqs []int64) error {
	model, err := optionalText("options.ModelID", options.ModelID)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(model))
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	var flags C.uint64_t
	if options.Convert {
		flags |= C.KVC_LOAD_CONVERT
	}
	if options.NoPublish {
		flags |= C.KVC_LOAD_NO_PUBLISH
	}
	data, size := memory(path, file)
	return failure(C.shim_seq_load(c.lib.api, c.h, path, data, size, model, flags, C.size_t(len(seqs)), i64s(seqs),
		C.uintptr_t(options.Stream)))
}

var noBytes [1]byte

// memory is where the bytes of a file lie, nil when it has a path.
func memory(path *C.char, file []byte) (unsafe.Pointer, C.size_t) {
	if path != nil {
		return nil, 0
	}
	if len(file) == 0 {
		return unsafe.Pointer(&noBytes[0]), 0
	}
	return unsafe.Pointer(&file[0]), C.size_t(len(file))
}

// DescribeStateFile reads and checks a whole state file and says what it holds, as JSON
// (kvc_state_file_describe).
func (l *Library) DescribeStateFile(path string) (string, error) {
	name, err := cText("path", path)
	if err != nil {
		return "", err
	}
	defer C.free(unsafe.Pointer(name))
	return l.describe(name, nil)
}

// DescribeState is DescribeStateFile for the bytes of a file.
func (l *Library) DescribeState(file []byte) (string, error) { return l.describe(nil, file) }

func (l *Library) describe(path *C.char, file []byte) (string, error) {
	data, size := memory(path, file)
	return text(func(buf *C.char, len *C.size_t) *C.kvc_error {
		return C.shim_state_file_describe(l.api, path, data, size, buf, len)
	})
}

// text is a string that C writes: asked for its size first.
func text(call func(buf *C.char, len *C.size_t) *C.kvc_error) (string, error) {
	var size C.size_t
	if err := failure(call(nil, &size)); err != nil {
		return "", err
	}
	bytes := make([]byte, size)
	if err := failure(call((*C.char)(unsafe.Pointer(&bytes[0])), &size)); err != nil {
		return "", err
	}
	return string(bytes[:size-1]), nil
}
