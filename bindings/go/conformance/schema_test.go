package conformance

import (
	"fmt"
	"strings"
)

// Keys of objects, by where they stand. An unknown key is an error: what it asks for would not be checked.
const (
	scenarioKeys = "name about config tolerance steps"
	configKeys   = "page_size num_pages byte_budget layers layer_begin layer_end max_seqs max_seq_len storage " +
		"max_tokens_per_forward pool_layout max_cross_len num_state_slots state_stride num_threads event_capacity pad_pages"
	layerKeys = "kind heads q_heads k_dim v_dim dtype rope v_dtype window chunk source latent_rank " +
		"latent_rope_dim v_is_k states"
	stateKeys = "shape dtype init"
	ropeKeys  = "mode style rotary_dim theta scale freq_factors long_freq_factors scaling sections " +
		"section_layout factor low_freq_factor high_freq_factor beta_fast beta_slow attention_factor original_context frequencies magnitude"
	expectKeys   = "lengths free_pages empty total_length seqs info pages stats"
	optionKeys   = "scale soft_cap window sink_logits alibi spans bias flags"
	tableKeys    = "seq_lens qo_indptr page_indptr page_indices block_table"
	queryKeyKeys = "type offset data"
	stepKeys     = "op about status detail expect"
	batchKeys    = "seqs lengths ids tree_parents positions cross_lengths cross_ids publish partial"
	queryKeys    = "tokens num_tokens salt keys flags priority hashes hit"
	rowKeys      = "q sees at q_at long_from opt"
)

// operationKeys are the keys of each step besides stepKeys.
var operationKeys = map[string]string{
	"plan":          "config groups layer_groups request_pages layers",
	"add":           "seq",
	"remove":        "seq",
	"fork":          "parent child pos",
	"pop":           "seq n",
	"shift":         "seq begin end delta",
	"set_window":    "seq window sink",
	"clear":         "",
	"resize":        "num_pages",
	"can_append":    "seqs lengths missing",
	"can":           "seq what pos nearest",
	"checkpoint":    "seq",
	"commit":        "seqs leaves",
	"begin":         batchKeys,
	"end":           "",
	"abort":         "",
	"forward":       batchKeys + " " + rowKeys + " layer_sees cross_sees get set",
	"positions":     "values",
	"tables":        "layer indptr last_page_len seq_lens qo_indptr page_position kind",
	"attn":          rowKeys + " layer append rows",
	"fused":         rowKeys + " layer",
	"self":          rowKeys + " layer into",
	"cached":        rowKeys + " layer into",
	"merge":         rowKeys + " layer into other",
	"append":        "layer",
	"mla_append":    "layer",
	"cross":         rowKeys + " layer give",
	"shared_kv":     rowKeys + " source q_heads",
	"gather":        "layer seq ids at long_from",
	"state_get":     "layer state values",
	"state_set":     "layer state values",
	"linear":        "layer state decay delta beta scale skip heads_k history",
	"conv":          "layer state bias activation history",
	"stored":        "seq layer begin end ids at long_from",
	"store":         "seq layer begin ids",
	"stored_kv":     "seq begin end ids",
	"store_kv":      "seq begin ids",
	"stored_mla":    "seq begin end ids",
	"store_mla":     "seq begin ids",
	"stored_state":  "seq layer state value conv_inputs linear",
	"store_state":   "seq layer state value",
	"export_pool":   "layer kind shape",
	"op_pool":       "pool layout num_pages page_size heads k_dim v_dim dtype",
	"op_append":     "pool slots ids positions rope",
	"op_attention":  rowKeys + " pool table q_ids q_heads full rope",
	"op_mla":        rowKeys + " pool table q_ids q_heads latent_rank",
	"op_ragged":     rowKeys + " qo_indptr kv_indptr q_ids k_ids q_heads heads dim full",
	"op_merge":      "heads dim parts",
	"op_gather":     "pool table ids",
	"op_copy_pages": "pool pairs",
	"op_rotate":     "ids heads dim positions rope in_place",
	"op_linear":     "ids qo_indptr heads k_dim v_dim decay delta beta scale",
	"prefix_hash":   "tokens salt keys block values",
	"match":         queryKeys,
	"attach":        queryKeys + " seq",
	"insert":        queryKeys + " seq",
	"pin":           queryKeys,
	"unpin":         queryKeys,
	"evict":         "pages freed",
	"prefix_reset":  "",
	"quota":         "salt pages",
	"events":        "counts",
}

func checkKeys(o object, known, where string) error {
	allowed := make(map[string]bool)
	for _, key := range strings.Fields(known) {
		allowed[key] = true
	}
	for key := range o {
		if !allowed[key] {
			return fmt.Errorf("%s: unknown key '%s'", where, key)
		}
	}
	return nil
}

func checkConfig(config object, where string) error {
	if err := checkKeys(config, configKeys, where); err != nil {
		return err
	}
	for _, value := range config.list("layers") {
		layer := value.(object)
		if err := checkKeys(layer, layerKeys, where+".layers"); err != nil {
			return err
		}
		if err := checkKeys(layer.object("rope"), ropeKeys, where+".layers.rope"); err != nil {
			return err
		}
		for _, state := range layer.listOr("states") {
			if err := checkKeys(state.(object), stateKeys, where+".layers.states"); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkStep(step object, where string) error {
	operation := step.text("op")
	known, found := operationKeys[operation]
	if !found {
		return fmt.Errorf("%s: unknown op '%s'", where, operation)
	}
	parts := []struct {
		of    object
		known string
		where string
	}{
		{step, stepKeys + " " + known, where},
		{step.object("expect"), expectKeys, where + ".expect"},
		{step.object("opt"), optionKeys, where + ".opt"},
		{step.object("table"), tableKeys, where + ".table"},
		{step.object("rope"), ropeKeys, where + ".rope"},
	}
	for _, key := range step.listOr("keys") {
		parts = append(parts, parts[0])
		last := &parts[len(parts)-1]
		last.of, last.known, last.where = key.(object), queryKeyKeys, where+".keys"
	}
	for _, part := range parts {
		if err := checkKeys(part.of, part.known, part.where); err != nil {
			return err
		}
	}
	if step.has("config") {
		return checkConfig(step.object("config"), where+".config")
	}
	return nil
}

// loadScenario reads a file and refuses what the runner does not know.
func loadScenario(path string) (object, error) {
	scenario, err := readObject(path)
	if err != nil {
		return nil, err
	}
	if err := checkKeys(scenario, scenarioKeys, "scenario"); err != nil {
		return nil, err
	}
	for _, key := range []string{"name", "about", "config", "steps"} {
		if !scenario.has(key) {
			return nil, fmt.Errorf("scenario: lacks '%s'", key)
		}
	}
	if err := checkConfig(scenario.object("config"), "config"); err != nil {
		return nil, err
	}
	for i, step := range scenario.list("steps") {
		if err := checkStep(step.(object), fmt.Sprintf("step %d", i)); err != nil {
			return nil, err
		}
	}
	return scenario, nil
}
