package kvcache_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

func TestTheLibraryTellsItsVersionAndFeatures(t *testing.T) {
	lib := load(t)
	if lib.ABIVersion()>>16 != kvcache.ABIVersion>>16 || lib.ABIVersion() < kvcache.ABIVersion {
		t.Errorf("ABI version %x, written for %x", lib.ABIVersion(), kvcache.ABIVersion)
	}
	if lib.Version() == "" || !lib.HasFeature("cpu") || lib.HasFeature("teleport") {
		t.Errorf("version %q, cpu %v, teleport %v", lib.Version(), lib.HasFeature("cpu"),
			lib.HasFeature("teleport"))
	}
}

func TestStatusesHaveTheNamesOfTheLibrary(t *testing.T) {
	lib := load(t)
	for status := kvcache.Status(-1); status < 30; status++ {
		if status.String() != lib.StatusName(status) {
			t.Errorf("status %d is %s, in C %s", int(status), status, lib.StatusName(status))
		}
	}
}

func TestModulesLieInADirectoryThatIsNamedInFull(t *testing.T) {
	lib := load(t)
	for _, path := range []string{"here", "./here", "/opt/$ORIGIN", "/opt\x00"} {
		is(t, lib.SetModulePath(path), kvcache.ErrInvalidArgument)
	}
	dir := t.TempDir()
	ok(t, lib.SetModulePath(dir))
	defer lib.SetModulePath("")
	if lib.HasFeature("cuda") {
		t.Error("there is no back end in an empty directory")
	}
	config := small()
	config.Device = kvcache.Device{Type: kvcache.CUDA}
	config.MaxSeqs, config.MaxSeqLen, config.MaxTokensPerForward = 2, 64, 8
	_, err := lib.NewCache(config)
	is(t, err, kvcache.ErrUnsupported)
	if !strings.Contains(err.Error(), dir+"/libkvcache_cuda.so") {
		t.Errorf("%v does not name the file", err)
	}
}

func TestTheProcessorCanBeAsked(t *testing.T) {
	caps, err := load(t).DeviceQuery(kvcache.Device{})
	ok(t, err)
	if !caps.BackendPresent || caps.Name == "" || caps.NumCores < 1 || !caps.Has(kvcache.ISAReference) ||
		!caps.Has(kvcache.ISAScalar) {
		t.Errorf("%+v", caps)
	}
	if caps.DTypes&kvcache.DTypeBF16 == 0 {
		t.Errorf("no bfloat16 in %x", caps.DTypes)
	}
}

func TestErrorsAreComparedByStatus(t *testing.T) {
	var err error = &kvcache.Error{Status: kvcache.ErrNoPages, Msg: "2 pages are missing", Detail: 2}
	if !errors.Is(err, kvcache.ErrNoPages) || errors.Is(err, kvcache.ErrNeverFits) ||
		errors.Is(err, kvcache.ErrClosed) {
		t.Error("errors.Is tells something else than the status")
	}
	if err.Error() != "kvcache: 2 pages are missing (KVC_E_NO_PAGES)" {
		t.Error(err)
	}
}

func TestTheLoggerIsCalledAndSilenced(t *testing.T) {
	lib := load(t)
	var mu sync.Mutex
	var messages []string
	ok(t, lib.SetLogger(func(level kvcache.LogLevel, message string) {
		mu.Lock()
		defer mu.Unlock()
		if level == kvcache.LogInfo {
			messages = append(messages, message)
		}
	}, kvcache.LogDebug))
	newCache(t, small())
	ok(t, lib.SetLogger(nil, kvcache.LogDebug))
	newCache(t, small())
	mu.Lock()
	defer mu.Unlock()
	if len(messages) != 1 || !strings.Contains(messages[0], "cache created") {
		t.Errorf("%q", messages)
	}
	is(t, lib.SetLogger(func(kvcache.LogLevel, string) {}, 99), kvcache.ErrInvalidArgument)
}

func TestHalvesRoundToNearestEven(t *testing.T) {
	for bits := 0; bits < 1<<16; bits++ {
		half, bfloat := kvcache.Float16(bits), kvcache.BFloat16(bits)
		if x := half.Float32(); x == x && kvcache.ToFloat16(x) != half {
			t.Fatalf("float16 %04x is %v, and back %04x", bits, x, kvcache.ToFloat16(x))
		}
		if x := bfloat.Float32(); x == x && kvcache.ToBFloat16(x) != bfloat {
			t.Fatalf("bfloat16 %04x is %v, and back %04x", bits, x, kvcache.ToBFloat16(x))
		}
	}
	for _, one := range []struct {
		x    float32
		half kvcache.Float16
	}{
		{1 + 1.0/2048, 0x3C00}, {1 + 3.0/2048, 0x3C02}, {65519, 0x7BFF}, {65520, 0x7C00},
		{1.0 / (1 << 25), 0}, {3.0 / (1 << 25), 2},
		{float32(math.Inf(-1)), 0xFC00}, {2047.0 / (1 << 25), 0x400},
	} {
		if got := kvcache.ToFloat16(one.x); got != one.half {
			t.Errorf("%v is %04x instead of %04x", one.x, got, one.half)
		}
	}
	if x := kvcache.ToBFloat16(1 + 1.0/256); x != 0x3F80 {
		t.Errorf("1 + 2^-8 is %04x", x)
	}
	nan := float32(math.NaN())
	if x := kvcache.ToFloat16(nan).Float32(); x == x {
		t.Error("NaN became a number")
	}
	if x := kvcache.ToBFloat16(nan).Float32(); x == x {
		t.Error("NaN became a number")
	}
}

func TestAPlanAnswersQuestions(t *testing.T) {
	lib := load(t)
	plan, err := lib.NewPlan(small())
	ok(t, err)
	defer plan.Close()
	info, err := plan.Info()
	ok(t, err)
	if info.NumLayers != 2 || info.NumPages != 16 || info.PageSize != 4 || info.PageBytes != 2*2*4*4*4 {
		t.Errorf("%+v", info)
	}
	layer, err := plan.Layer(1)
	ok(t, err)
	if layer.KDim != 4 || layer.VDim != 4 || layer.KDType != kvcache.F32 || layer.Kind != kvcache.LayerAttention {
		t.Errorf("%+v", layer)
	}
	group, err := plan.Group(0)
	ok(t, err)
	if group.NumLayers != 2 || group.PageSize != 4 || group.IsCross {
		t.Errorf("%+v", group)
	}
	pages, err := plan.PagesFor(10 * info.PageBytes)
	ok(t, err)
	most, err := plan.MaxTokens(10 * info.PageBytes)
	ok(t, err)
	request, err := plan.RequestPages(9)
	ok(t, err)
	if pages != 10 || most != 40 || request != 3 {
		t.Errorf("%d pages, %d tokens, %d pages of a request", pages, most, request)
	}
	text, err := plan.Describe()
	ok(t, err)
	json, err := plan.JSON()
	ok(t, err)
	if !strings.Contains(text, "page") || !strings.Contains(json, `"page_size"`) || strings.Contains(json, "\x00") {
		t.Errorf("%q %q", text, json)
	}
	least, err := lib.MinPages(plan, plan)
	ok(t, err)
	if least != 16 {
		t.Errorf("%d pages", least)
	}
	_, err = plan.Layer(2)
	is(t, err, kvcache.ErrOutOfRange)
	config := small()
	config.Layers[0].Quant, config.Layers[0].KDType = kvcache.QuantPerTokenHead, kvcache.I8
	config.Layers[0].VQuant, config.Layers[0].VDType = kvcache.QuantOff, kvcache.F16
	config.Layers[1].VQuant, config.Layers[1].VDType = kvcache.QuantPerTensor, kvcache.F8E4M3
	apart, err := lib.NewPlan(config)
	ok(t, err)
	defer apart.Close()
	first, err := apart.Layer(0)
	ok(t, err)
	second, err := apart.Layer(1)
	ok(t, err)
	if first.Quant != kvcache.QuantPerTokenHead || first.VQuant != kvcache.QuantNone || first.VDType != kvcache.F16 ||
		first.VScaleBytes != 0 || second.Quant != kvcache.QuantNone || second.VQuant != kvcache.QuantPerTensor {
		t.Errorf("%+v, %+v", first, second)
	}
	config.Layers[0].KeepTokens = 4
	kept, err := lib.NewPlan(config)
	ok(t, err)
	defer kept.Close()
	first, err = kept.Layer(0)
	ok(t, err)
	rows, err := kept.Group(int(first.KeptGroup))
	ok(t, err)
	if first.KeepTokens != 4 || rows.KeepTokens != 4 || rows.NumLayers != 1 || second.KeptGroup != -1 {
		t.Errorf("%+v, %+v, %+v", first, rows, second)
	}
	_, err = lib.MinPages()
	is(t, err, kvcache.ErrInvalidArgument)
}

func TestAConfigurationIsReadFromHuggingFace(t *testing.T) {
	lib := load(t)
	config, err := lib.ConfigFromHF([]byte(`{"model_type": "llama", "hidden_size": 256,
		"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096, "rope_theta": 500000.0, "torch_dtype": "bfloat16",
		"intermediate_size": 512, "vocab_size": 1000, "rms_norm_eps": 1e-5, "hidden_act": "silu"}`))
	ok(t, err)
	if len(config.Layers) != 3 || config.MaxSeqLen != 4096 {
		t.Fatalf("%+v", config)
	}
	layer := config.Layers[2]
	if layer.NumQHeads != 8 || layer.NumKVHeads != 2 || layer.KDim != 32 || layer.KDType != kvcache.BF16 {
		t.Errorf("%+v", layer)
	}
	if layer.Rope == nil || layer.Rope.Theta != 500000 || layer.Rope.Mode != kvcache.RopeOnAppend {
		t.Errorf("%+v", layer.Rope)
	}
	config.NumPages = 300
	plan, err := lib.NewPlan(config)
	ok(t, err)
	ok(t, plan.Close())
	_, err = lib.ConfigFromHF([]byte("{"))
	is(t, err, kvcache.ErrInvalidArgument)
	_, err = lib.ConfigFromHF([]byte(`{"model_type": "perceptron"}`))
	is(t, err, kvcache.ErrUnsupported)
}

func TestContextParallelRanksArePlannedAndNotServed(t *testing.T) {
	lib := load(t)
	layers := []kvcache.Layer{{NumKVHeads: 2, KDim: 64}}
	for ranks, wanted := range map[int]int64{0: 63, 4: 16} {
		plan, err := lib.NewPlan(&kvcache.Config{Layers: layers, NumPages: 64, CPSize: ranks})
		ok(t, err)
		pages, err := plan.RequestPages(1000)
		ok(t, err)
		if pages != wanted {
			t.Errorf("%d pages over %d ranks, expected %d", pages, ranks, wanted)
		}
		ok(t, plan.Close())
	}
	_, err := lib.NewCache(&kvcache.Config{Layers: layers, NumPages: 64, CPSize: 4})
	is(t, err, kvcache.ErrUnsupported)
}

func TestAModelTypeThatIsNotKnownIsReadAsTheOptionsSay(t *testing.T) {
	lib := load(t)
	strange := []byte(`{"model_type": "novel", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
		"kv_groups_map": 3, "sliding_window": 32, "sliding_window_pattern": "LG"}`)
	_, err := lib.ConfigFromHF(strange)
	is(t, err, kvcache.ErrUnsupported)
	config, err := lib.ConfigFromHFWith(strange, kvcache.HFOptions{Assume: "llama"})
	ok(t, err)
	if len(config.Layers) != 4 || config.Layers[0].Window != 32 || config.Layers[3].Window != 0 {
		t.Errorf("%+v", config.Layers)
	}
	drafting := bytes.Replace(strange, []byte("kv_groups_map"), []byte("num_nextn_predict_layers"), 1)
	config, err = lib.ConfigFromHFWith(drafting, kvcache.HFOptions{MTPLayers: 3})
	ok(t, err)
	if len(config.Layers) != 7 {
		t.Errorf("%d layers", len(config.Layers))
	}
	_, err = lib.ConfigFromHFWith(drafting, kvcache.HFOptions{MTPLayers: 4})
	is(t, err, kvcache.ErrOutOfRange)
	for _, wrong := range []string{"lama", "lla\x00ma"} {
		_, err = lib.ConfigFromHFWith(strange, kvcache.HFOptions{Assume: wrong})
		is(t, err, kvcache.ErrInvalidArgument)
	}
}

func TestStatesAndFactorsComeOutOfHuggingFaceToo(t *testing.T) {
	lib := load(t)
	config, err := lib.ConfigFromHF([]byte(`{"model_type": "mamba2", "hidden_size": 64,
		"num_hidden_layers": 2, "state_size": 16, "num_heads": 8, "head_dim": 16, "expand": 2, "conv_kernel": 4, "n_groups": 1, "torch_dtype": "float32"}`))
	ok(t, err)
	if len(config.Layers) != 2 || config.Layers[0].Kind != kvcache.LayerState || len(config.Layers[0].States) != 2 {
		t.Fatalf("%+v", config.Layers)
	}
	for _, state := range config.Layers[0].States {
		if len(state.Shape) < 2 {
			t.Errorf("%+v", state)
		}
	}
	config.NumPages = 10
	_, err = lib.ConfigFromHF([]byte(strings.Repeat(" ", 100)))
	is(t, err, kvcache.ErrInvalidArgument)
	config, err = lib.ConfigFromHF([]byte(`{"model_type": "llama", "hidden_size": 256,
		"num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 131072,
		"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
		"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}`))
	ok(t, err)
	rope := config.Layers[0].Rope
	if rope.Scaling != kvcache.RopeScalingLlama3 || rope.Factor != 8 || rope.OriginalContext != 8192 {
		t.Errorf("%+v", rope)
	}
}
