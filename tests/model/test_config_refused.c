/* What is wrong in config.json and generation_config.json is refused by its name, or told of. */
#include <sys/stat.h>

#include "model/config.h"
#include "tests/model/config_patch.h"
#include "tests/support/own_stderr.h"
#include "tests/support/test.h"

typedef struct {
    const char *patch;
    bt_status   st;
    const char *parts[3]; /* in the message: field, expected, found */
} bad_case;

/* clang-format off */
static const bad_case BAD[] = {
    /* absent */
    {"{\"model_type\": \"-\"}",              BT_ERR_FORMAT, {"field model_type", "expected a string", "found nothing"}},
    {"{\"vocab_size\": \"-\"}",              BT_ERR_FORMAT, {"field vocab_size", "expected an integer from 1", "found nothing"}},
    {"{\"hidden_size\": null}",              BT_ERR_FORMAT, {"field hidden_size", "expected", "found nothing"}},
    {"{\"num_hidden_layers\": \"-\"}",       BT_ERR_FORMAT, {"field num_hidden_layers", "expected", "found nothing"}},
    {"{\"num_attention_heads\": \"-\"}",     BT_ERR_FORMAT, {"field num_attention_heads", "expected", "found nothing"}},
    {"{\"kv_lora_rank\": \"-\"}",            BT_ERR_FORMAT, {"field kv_lora_rank", "expected", "found nothing"}},
    {"{\"qk_nope_head_dim\": \"-\"}",        BT_ERR_FORMAT, {"field qk_nope_head_dim", "expected", "found nothing"}},
    {"{\"qk_rope_head_dim\": \"-\"}",        BT_ERR_FORMAT, {"field qk_rope_head_dim", "expected", "found nothing"}},
    {"{\"v_head_dim\": \"-\"}",              BT_ERR_FORMAT, {"field v_head_dim", "expected", "found nothing"}},
    {"{\"intermediate_size\": \"-\"}",       BT_ERR_FORMAT, {"field intermediate_size", "expected", "found nothing"}},
    {"{\"max_position_embeddings\": 1048577}", BT_ERR_FORMAT, {"field max_position_embeddings", "expected an integer from 1 to 1048576", "found 1048577"}},
    {"{\"max_position_embeddings\": \"-\"}", BT_ERR_FORMAT, {"field max_position_embeddings", "expected", "found nothing"}},
    {"{\"rms_norm_eps\": \"-\"}",            BT_ERR_FORMAT, {"field rms_norm_eps", "expected a number", "found nothing"}},
    {"{\"rope_theta\": \"-\"}",              BT_ERR_FORMAT, {"field rope_theta", "expected a number", "found nothing"}},
    {"{\"moe_intermediate_size\": \"-\"}",   BT_ERR_FORMAT, {"field moe_intermediate_size", "expected", "found nothing"}},
    {"{\"num_experts_per_tok\": \"-\"}",     BT_ERR_FORMAT, {"field num_experts_per_tok", "expected", "found nothing"}},
    {"{\"first_k_dense_replace\": \"-\"}",   BT_ERR_FORMAT, {"field first_k_dense_replace", "expected", "found nothing"}},
    {"{\"norm_topk_prob\": \"-\"}",          BT_ERR_FORMAT, {"field norm_topk_prob", "expected true or false", "found nothing"}},
    {"{\"model_type\": \"axk1\", \"architectures\": null, \"norm_topk_prob\": null}", BT_ERR_FORMAT, {"field norm_topk_prob", "expected true or false", "found nothing"}},
    {"{\"routed_scaling_factor\": \"-\"}",   BT_ERR_FORMAT, {"field routed_scaling_factor", "expected a number", "found nothing"}},
    /* of the wrong type */
    {"{\"model_type\": 3}",                  BT_ERR_FORMAT, {"field model_type", "expected a string", "found 3 (a number)"}},
    {"{\"hidden_size\": \"256\"}",           BT_ERR_FORMAT, {"field hidden_size", "expected an integer", "found \"256\" (a string)"}},
    {"{\"hidden_size\": 256.0}",             BT_ERR_FORMAT, {"field hidden_size", "expected an integer", "found 256.0 (a number)"}},
    {"{\"hidden_size\": [256]}",             BT_ERR_FORMAT, {"field hidden_size", "expected an integer", "found [256] (an array)"}},
    {"{\"rope_scaling\": \"yarn\"}",         BT_ERR_FORMAT, {"field rope_scaling", "expected an object", "found \"yarn\" (a string)"}},
    {"{\"tie_word_embeddings\": 1}",         BT_ERR_FORMAT, {"field tie_word_embeddings", "expected true or false", "found 1"}},
    {"{\"architectures\": \"V3\"}",          BT_ERR_FORMAT, {"field architectures", "expected a list", "found \"V3\""}},
    {"{\"architectures\": []}",              BT_ERR_FORMAT, {"field architectures", "expected a list", "found []"}},
    {"{\"quantization_config\": \"fp8\"}",   BT_ERR_FORMAT, {"field quantization_config", "expected an object", "found \"fp8\""}},
    {"{\"eos_token_id\": \"</s>\"}",         BT_ERR_FORMAT, {"field eos_token_id", "expected a token id", "found \"</s>\""}},
    {"{\"rms_norm_eps\": \"1e-6\"}",         BT_ERR_FORMAT, {"field rms_norm_eps", "expected a number", "found \"1e-6\""}},
    {"{\"mlp_layer_types\": \"sparse\"}",    BT_ERR_FORMAT, {"field mlp_layer_types", "expected a list of 4", "found \"sparse\""}},
    /* absurd */
    {"{\"vocab_size\": 0}",                  BT_ERR_FORMAT, {"field vocab_size", "expected an integer from 1", "found 0"}},
    {"{\"vocab_size\": -5}",                 BT_ERR_FORMAT, {"field vocab_size", "expected", "found -5"}},
    {"{\"vocab_size\": 9223372036854775807}", BT_ERR_FORMAT, {"field vocab_size", "expected", "found 9223372036854775807"}},
    {"{\"hidden_size\": 4294967552}",        BT_ERR_FORMAT, {"field hidden_size", "expected", "found 4294967552"}},
    {"{\"num_hidden_layers\": 1000000}",     BT_ERR_FORMAT, {"field num_hidden_layers", "expected", "found 1000000"}},
    {"{\"qk_rope_head_dim\": 63}",           BT_ERR_FORMAT, {"field qk_rope_head_dim", "expected an even number", "found 63"}},
    {"{\"qk_rope_head_dim\": 1024}",         BT_ERR_FORMAT, {"field qk_rope_head_dim", "expected an integer from 2 to 512", "found 1024"}},
    {"{\"rms_norm_eps\": 0}",                BT_ERR_FORMAT, {"field rms_norm_eps", "expected", "found 0"}},
    {"{\"rms_norm_eps\": -1e-6}",            BT_ERR_FORMAT, {"field rms_norm_eps", "expected", "found -"}},
    {"{\"rope_theta\": 0}",                  BT_ERR_FORMAT, {"field rope_theta", "expected", "found 0"}},
    {"{\"rope_theta\": 1}",                  BT_ERR_FORMAT, {"field rope_theta", "expected", "found 1"}},
    {"{\"routed_scaling_factor\": 0}",       BT_ERR_FORMAT, {"field routed_scaling_factor", "expected", "found 0"}},
    {"{\"first_k_dense_replace\": -1}",      BT_ERR_FORMAT, {"field first_k_dense_replace", "expected an integer from 0 to", "found -1"}},
    {"{\"moe_layer_freq\": 0}",              BT_ERR_FORMAT, {"field moe_layer_freq", "expected an integer from 1", "found 0"}},
    {"{\"n_routed_experts\": 100000}",       BT_ERR_FORMAT, {"field n_routed_experts", "expected", "found 100000"}},
    {"{\"n_group\": 3}",                     BT_ERR_FORMAT, {"field n_group", "expected a divisor of n_routed_experts (16)", "found 3"}},
    {"{\"n_group\": 0}",                     BT_ERR_FORMAT, {"field n_group", "expected", "found 0"}},
    {"{\"n_group\": 16}",                    BT_ERR_FORMAT, {"field num_experts_per_tok", "expected at most 2 (topk_group 2 groups of 1 experts)", "found 4"}},
    {"{\"n_group\": null, \"topk_group\": null}", BT_ERR_FORMAT, {"field n_group", "expected an integer from 1", "found nothing"}},
    {"{\"model_type\": \"deepseek_v2\", \"architectures\": null, \"topk_method\": \"group_limited_greedy\", \"scoring_func\": \"softmax\", "
     "\"norm_topk_prob\": false, \"n_group\": \"-\", \"topk_group\": \"-\"}", BT_ERR_FORMAT, {"field n_group", "expected an integer from 1", "found nothing"}},
    {"{\"topk_group\": null}",               BT_ERR_FORMAT, {"field topk_group", "expected an integer from 1", "found nothing"}},
    {"{\"topk_group\": 5}",                  BT_ERR_FORMAT, {"field topk_group", "expected at most n_group (4)", "found 5"}},
    {"{\"num_experts_per_tok\": 9}",         BT_ERR_FORMAT, {"field num_experts_per_tok", "expected at most 8", "found 9"}},
    {"{\"num_experts_per_tok\": 0}",         BT_ERR_FORMAT, {"field num_experts_per_tok", "expected", "found 0"}},
    {"{\"n_group\": 1, \"topk_group\": 1, \"num_experts_per_tok\": 17}", BT_ERR_FORMAT, {"field num_experts_per_tok", "expected at most 16", "found 17"}},
    {"{\"n_shared_experts\": 1024, \"moe_intermediate_size\": 1048576}", BT_ERR_FORMAT, {"field n_shared_experts", "expected", "found 1024"}},
    {"{\"eos_token_id\": 2048}",             BT_ERR_FORMAT, {"field eos_token_id", "expected a token id from 0 to 2047", "found 2048"}},
    {"{\"eos_token_id\": [1, -1]}",          BT_ERR_FORMAT, {"field eos_token_id", "expected a token id", "found -1"}},
    {"{\"bos_token_id\": 99999}",            BT_ERR_FORMAT, {"field bos_token_id", "expected a token id", "found 99999"}},
    {"{\"rope_scaling\": {\"type\": \"yarn\"}}", BT_ERR_FORMAT, {"field rope_scaling.factor", "expected a number", "found nothing"}},
    {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}}", BT_ERR_FORMAT, {"field rope_scaling.factor", "expected a number from 1", "found 0.5"}},
    {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}}", BT_ERR_FORMAT, {"field rope_scaling.original_max_position_embeddings", "expected", "found nothing"}},
    {"{\"rope_scaling\": {\"factor\": 4}}",  BT_ERR_FORMAT, {"field rope_scaling.rope_type", "expected a string", "found nothing"}},
    {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 2048, \"beta_fast\": 1, \"beta_slow\": 32}}", BT_ERR_FORMAT, {"field rope_scaling.beta_fast", "expected at least beta_slow", "found 1"}},
    {"{\"original_max_position_embeddings\": 1024}", BT_ERR_FORMAT, {"field original_max_position_embeddings", "expected 2048 as in rope_scaling", "found 1024"}},
    {"{\"rope_parameters\": {\"rope_type\": \"default\"}}", BT_ERR_FORMAT, {"rope_scaling", "rope_parameters", "found both"}},
    {"{\"mlp_layer_types\": [\"dense\", \"dense\", \"sparse\", \"sparse\"]}", BT_ERR_FORMAT, {"field mlp_layer_types", "expected 1 dense", "found 2"}},
    {"{\"mlp_layer_types\": [\"dense\", \"wide\", \"sparse\", \"sparse\"]}", BT_ERR_FORMAT, {"field mlp_layer_types[1]", "expected \"dense\" or \"sparse\"", "found \"wide\""}},
    /* understood and not supported */
    {"{\"model_type\": \"llama\"}",          BT_ERR_UNSUPPORTED, {"field model_type", "expected deepseek_v2", "found \"llama\""}},
    {"{\"model_type\": \"deepseek_v32\"}",   BT_ERR_UNSUPPORTED, {"field architectures", "expected \"DeepseekV32ForCausalLM\"", "found \"DeepseekV3ForCausalLM\""}},
    {"{\"architectures\": [\"LlamaForCausalLM\"]}", BT_ERR_UNSUPPORTED, {"field architectures", "expected \"DeepseekV3ForCausalLM\"", "found \"LlamaForCausalLM\""}},
    {"{\"attention_bias\": true}",           BT_ERR_UNSUPPORTED, {"field attention_bias", "expected false", "found true"}},
    {"{\"is_causal\": false}",               BT_ERR_UNSUPPORTED, {"field is_causal", "expected true", "found false"}},
    {"{\"hidden_act\": \"gelu\"}",           BT_ERR_UNSUPPORTED, {"field hidden_act", "expected \"silu\"", "found \"gelu\""}},
    {"{\"index_topk\": 2048}",               BT_ERR_UNSUPPORTED, {"field index_topk", "expected it absent", "found 2048"}},
    {"{\"rope_interleave\": false}",         BT_ERR_UNSUPPORTED, {"field rope_interleave", "expected true", "found false"}},
    {"{\"rope_interleave\": null}",          BT_ERR_FORMAT, {"field rope_interleave", "expected true or false", "found nothing"}},
    {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 2048, \"truncate\": false}}", BT_ERR_UNSUPPORTED, {"field rope_scaling.truncate", "expected true", "found false"}},
    {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 2048, \"truncate\": null}}", BT_ERR_FORMAT, {"field rope_scaling.truncate", "expected true or false", "found nothing"}},
    {"{\"partial_rotary_factor\": 0.5}",     BT_ERR_UNSUPPORTED, {"field partial_rotary_factor", "expected 1", "found 0.5"}},
    {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}", BT_ERR_UNSUPPORTED, {"field rope_scaling.type", "expected \"yarn\"", "found \"linear\""}},
    {"{\"topk_method\": \"hash\"}",          BT_ERR_UNSUPPORTED, {"topk_method", "expected noaux_tc with sigmoid", "found \"hash\" with \"sigmoid\""}},
    {"{\"topk_method\": \"greedy\", \"scoring_func\": \"softmax\"}", BT_ERR_UNSUPPORTED, {"topk_method", "expected noaux_tc with sigmoid", "found \"greedy\" with \"softmax\""}},
    {"{\"model_type\": \"deepseek_v2\", \"architectures\": [\"DeepseekV2ForCausalLM\"]}", BT_ERR_UNSUPPORTED, {"topk_method", "expected greedy or group_limited_greedy with softmax", "found \"noaux_tc\" with \"sigmoid\""}},
    {"{\"model_type\": \"deepseek_v2\", \"architectures\": [\"DeepseekV2ForCausalLM\"], \"topk_method\": \"greedy\", \"scoring_func\": \"softmax\"}", BT_ERR_UNSUPPORTED, {"field norm_topk_prob", "expected false", "found true"}},
    {"{\"scoring_func\": \"softmax\"}",      BT_ERR_UNSUPPORTED, {"scoring_func", "expected", "found \"noaux_tc\" with \"softmax\""}},
    {"{\"quantization_config\": {\"bits\": 4, \"group_size\": 64}}", BT_ERR_UNSUPPORTED, {"field quantization_config.quant_method: expected \"fp8\" or \"compressed-tensors\"", "found nothing (as MLX quantizes)", ""}},
    {"{\"quantization_config\": {\"quant_method\": \"awq\"}}", BT_ERR_UNSUPPORTED, {"field quantization_config.quant_method", "expected \"fp8\" or \"compressed-tensors\"", "found \"awq\""}},
    {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}}", BT_ERR_UNSUPPORTED, {"field quantization_config.fmt", "expected \"e4m3\"", "found \"e5m2\""}},
    {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}}", BT_ERR_UNSUPPORTED, {"weight_block_size", "expected [128,128]", "found [64,128]"}},
    {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": null}}", BT_ERR_UNSUPPORTED, {"activation_scheme", "expected \"static\"", "found nothing"}},
    {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": null, \"activation_scheme\": \"dynamic\"}}", BT_ERR_UNSUPPORTED, {"activation_scheme", "expected \"static\"", "found \"dynamic\""}},
    {"{\"quantization_config\": {\"quant_method\": \"fp8\"}}", BT_ERR_UNSUPPORTED, {"weight_block_size", "expected [128,128]", "found nothing"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", \"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, \"strategy\": \"channel\"}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.g.weights.strategy", "expected \"block\"", "found \"channel\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", \"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, \"strategy\": \"block\", \"block_structure\": [128, 64]}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.g.weights.block_structure", "expected [128,128]", "found [128,64]"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.weights.num_bits", "expected 4", "found 8"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.weights.num_bits", "expected 4", "found nothing"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"float\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.weights.type", "expected \"int\"", "found \"float\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": false, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.weights.symmetric", "expected true", "found false"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"channel\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.weights.strategy", "expected \"group\"", "found \"channel\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 128}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.weights.group_size", "expected 32", "found 128"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32, \"dynamic\": true}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.weights.dynamic", "expected false or nothing", "found true"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32, \"actorder\": \"group\"}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.weights.actorder", "expected false or nothing", "found \"group\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"input_activations\": {\"num_bits\": 8}, \"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.input_activations", "expected it absent", "found {"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"output_activations\": {}, \"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.output_activations", "expected it absent", "found {}"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"format\": \"int-quantized\", \"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.config_groups.group_0.format", "expected \"pack-quantized\"", "found \"int-quantized\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {\"targets\": \"Linear\", \"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_FORMAT, {"field quantization_config.config_groups.group_0.targets", "expected a list of names", "found \"Linear\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"kv_cache_scheme\": {\"num_bits\": 8}, \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.kv_cache_scheme", "expected it absent", "found {"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"quantization_status\": \"frozen\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.quantization_status", "expected \"compressed\"", "found \"frozen\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"sparsity_config\": {\"format\": \"dense\"}, \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_UNSUPPORTED, {"field quantization_config.sparsity_config", "expected {}", "found {"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"ignore\": \"lm_head\", \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_FORMAT, {"field quantization_config.ignore", "expected a list of names", "found \"lm_head\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"ignore\": [1], \"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}}", BT_ERR_FORMAT, {"field quantization_config.ignore", "expected a list of names", "found [1]"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\"}}", BT_ERR_UNSUPPORTED, {"field quantization_config.format", "expected \"pack-quantized\"", "found \"nvfp4-pack-quantized\""}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}}", BT_ERR_FORMAT, {"field quantization_config.config_groups", "expected an object", "found nothing"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {}}}", BT_ERR_FORMAT, {"field quantization_config.config_groups", "expected one group or more", "found none"}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"W4A16\": [\"Linear\"]}}}", BT_ERR_FORMAT, {"field quantization_config.config_groups.W4A16", "expected an object", "found ["}},
    {"{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {\"group_0\": {}}}}", BT_ERR_FORMAT, {"field quantization_config.config_groups.group_0.weights", "expected an object", "found nothing"}},
    {"{\"mlp_layer_types\": [\"dense\", \"sparse\", \"dense\", \"sparse\"]}", BT_ERR_UNSUPPORTED, {"field mlp_layer_types[2]", "expected no dense layer after", ""}},
    {"{\"eos_token_id\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}", BT_ERR_UNSUPPORTED, {"field eos_token_id", "expected at most 16", ""}},
    /* sparse attention */
    {"{\"model_type\": \"deepseek_v32\", \"architectures\": null}", BT_ERR_FORMAT, {"field index_topk", "expected an integer from 1", "found nothing"}},
    {"{\"model_type\": \"deepseek_v32\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 0, \"index_head_dim\": 64}", BT_ERR_FORMAT, {"field index_n_heads", "expected an integer from 1", "found 0"}},
    {"{\"model_type\": \"deepseek_v32\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 32}", BT_ERR_FORMAT, {"field index_head_dim", "expected an integer from 64", "found 32"}},
    {"{\"model_type\": \"deepseek_v32\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"q_lora_rank\": null}", BT_ERR_UNSUPPORTED, {"field q_lora_rank", "expected an integer from 1", "found nothing"}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"indexer_types\": [\"full\", \"shared\"]}", BT_ERR_FORMAT, {"field indexer_types", "expected a list of 4", "found [\"full\""}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"indexer_types\": [\"full\", \"none\", \"full\", \"full\"]}", BT_ERR_FORMAT, {"field indexer_types[1]", "expected \"full\" or \"shared\"", "found \"none\""}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"indexer_types\": [\"shared\", \"full\", \"full\", \"full\"]}", BT_ERR_FORMAT, {"first layer", "expected it to have an indexer", "found \"shared\""}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"index_topk_pattern\": \"FSX\"}", BT_ERR_FORMAT, {"field index_topk_pattern", "expected 4 letters", "found \"FSX\""}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"index_topk_pattern\": [\"F\", \"S\", \"full\", \"S\"]}", BT_ERR_FORMAT, {"field index_topk_pattern[2]", "expected \"F\" or \"S\"", "found \"full\""}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"index_topk_pattern\": [\"F\"]}", BT_ERR_FORMAT, {"field index_topk_pattern", "expected a list of 4", "found [\"F\"]"}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"index_topk_freq\": 4, \"index_skip_topk_offset\": 0}", BT_ERR_FORMAT, {"first layer", "expected it to have an indexer", "found \"shared\""}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"indexer_rope_interleave\": false}", BT_ERR_UNSUPPORTED, {"field indexer_rope_interleave: expected true", "found false", ""}},
    {"{\"model_type\": \"deepseek_v32\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"indexer_rope_interleave\": true}", BT_ERR_UNSUPPORTED, {"field indexer_rope_interleave: expected false", "found true", ""}},
    {"{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, \"sliding_window\": 128}", BT_ERR_UNSUPPORTED, {"field sliding_window", "expected it absent", "found 128"}},
};
/* clang-format on */

static void config_bad_fields_are_refused_by_name(void)
{
    bt_model_config c, untouched;

    memset(&c, 0x5a, sizeof(c));
    untouched = c;
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        int       before = g_failures;
        bt_status st     = read_patched(BAD[i].patch, &c);

        EXPECT_EQ(st, BAD[i].st);
        EXPECT(memcmp(&c, &untouched, sizeof(c)) == 0);
        if (st != BT_OK) {
            EXPECT_HAS(bt_error_text(), "config.json");
            for (int k = 0; k < 3; k++)
                EXPECT_HAS(bt_error_text(), BAD[i].parts[k]);
        }
        if (g_failures != before) fprintf(stderr, "    for the patch %s\n", BAD[i].patch);
    }
}

static void config_bad_files_are_refused(void)
{
    static const struct {
        const char *text, *part;
    } FILES[] = {
        {"",                                       "expected JSON"          },
        {"{\"model_type\": \"deepseek_v3\"",       "expected JSON"          },
        {"[1, 2]",                                 "expected an object"     },
        {"null",                                   "expected an object"     },
        {"{\"a\": 1} x",                           "expected JSON"          },
        {"{\"vocab_size\": 1, \"vocab_size\": 2}", "duplicate"              },
        {"{\"model_type\": \"deep\xffseek\"}",     "expected JSON"          },
        {"{\"model_type\": \"deepseek\\nEVIL\"}",  "found \"deepseek?EVIL\""},
    };
    bt_model_config c;

    for (size_t i = 0; i < sizeof(FILES) / sizeof(FILES[0]); i++) {
        scratch_clear();
        scratch_write("config.json", FILES[i].text, strlen(FILES[i].text));
        EXPECT(bt_model_config_read(g_scratch, &c) != BT_OK);
        EXPECT_HAS(bt_error_text(), FILES[i].part);
        EXPECT_HAS(bt_error_text(), "config.json");
    }
    scratch_clear();
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "No such file");
    EXPECT_EQ(bt_model_config_read("/nonexistent", &c), BT_ERR_IO);
    EXPECT_EQ(mkfifo(scratch_path("config.json"), 0600), 0);
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "regular file");
}

static void config_deep_json_is_refused(void)
{
    enum { DEPTH = 100000 };
    bt_model_config c;
    char           *text = malloc(DEPTH);

    if (text == NULL) abort();
    memset(text, '[', DEPTH);
    scratch_clear();
    scratch_write("config.json", text, DEPTH);
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "maximum parsing depth");
    free(text);
}

static void config_bad_generation_config_is_refused(void)
{
    static const struct {
        const char *text, *part;
    } FILES[] = {
        {"{",                        "expected JSON"                       },
        {"{\"eos_token_id\": 9999}", "field eos_token_id"                  },
        {"{\"temperature\": -1}",    "field temperature: expected"         },
        {"{\"top_p\": \"x\"}",       "field top_p: expected a number"      },
        {"{\"top_k\": 1.5}",         "field top_k: expected a whole number"},
    };
    bt_model_config c;

    for (size_t i = 0; i < sizeof(FILES) / sizeof(FILES[0]); i++) {
        scratch_clear();
        write_patched("{}");
        scratch_write("generation_config.json", FILES[i].text, strlen(FILES[i].text));
        EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), "generation_config.json");
        EXPECT_HAS(bt_error_text(), FILES[i].part);
    }
    /* A download that broke off leaves links to nothing: no reason to do without the file. */
    scratch_clear();
    write_patched("{}");
    EXPECT_EQ(symlink("nothing", scratch_path("generation_config.json")), 0);
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "generation_config.json: No such file or directory");
}

/* What the config.json with this patch makes the reader say. */
static const char *said_of(const char *patch)
{
    bt_model_config c;
    own_stderr      own = begin_stderr();

    EXPECT_EQ(read_patched(patch, &c), BT_OK);
    return end_stderr(own);
}

static void config_names_that_look_misspelt_are_told(void)
{
    static const struct {
        const char *name, *meant; /* NULL: it is not told */
    } CASES[] = {
        {"hiden_sice",        "hidden_size"     },
        {"hidden_sizeabc",    NULL              },
        {"index_topkqq",      "index_topk"      },
        {"indx_topq",         NULL              }, /* two letters of a short name */
        {"index_top",         "index_topk"      },
        {"n_groups",          "n_group"         },
        {"n_groupss",         NULL              },
        {"architecture",      "architectures"   },
        {"qk_rope_head_dims", "qk_rope_head_dim"}, /* and two letters from qk_nope_head_dim */
        {"qk_nope_head_dims", "qk_nope_head_dim"},
        {"qk_head_dims",      "qk_head_dim"     },
        {"head_dim",          NULL              },
        {"q_head_dim",        NULL              }, /* of Sarvam-105B */
    };
    char patch[64], want[128];

    EXPECT(strstr(said_of("{}"), "not known") == NULL);
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const char *said;

        snprintf(patch, sizeof(patch), "{\"%s\": 1}", CASES[i].name);
        snprintf(want, sizeof(want), "config.json: field %s: not known, and not read: is it %s?",
                 CASES[i].name, CASES[i].meant != NULL ? CASES[i].meant : "");
        said = said_of(patch);
        if (CASES[i].meant != NULL)
            EXPECT_HAS(said, want);
        else
            EXPECT(strstr(said, "not known") == NULL);
    }
}

static void config_names_of_rope_that_look_misspelt_are_told(void)
{
    const char *said = said_of("{\"rope_scaling\": {\"type\": \"default\", \"beta_fasts\": 1, "
                               "\"beta_slow_x\": 1, \"truncat\": 1, \"n_groups\": 1}}");

    EXPECT_HAS(said, "field rope_scaling.beta_fasts: not known, and not read: is it beta_fast?");
    EXPECT_HAS(said, "field rope_scaling.truncat: not known, and not read: is it truncate?");
    EXPECT(strstr(said, "beta_slow_x") == NULL && strstr(said, "n_groups") == NULL);
    said = said_of("{\"rope_scaling\": \"-\", \"rope_parameters\": {\"rope_type\": \"default\", "
                   "\"typo\": 1}}");
    EXPECT_HAS(said, "field rope_parameters.typo: not known, and not read: is it type?");
}

static const bt_test TESTS[] = {
    BT_TEST(config_bad_fields_are_refused_by_name),
    BT_TEST(config_bad_files_are_refused),
    BT_TEST(config_deep_json_is_refused),
    BT_TEST(config_bad_generation_config_is_refused),
    BT_TEST(config_names_that_look_misspelt_are_told),
    BT_TEST(config_names_of_rope_that_look_misspelt_are_told),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
