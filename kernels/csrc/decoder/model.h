// A decoder-only model as the plan computes it: numbers, norm weights, and packed weights that Python objects keep alive. It
// mirrors the runtime's DecoderDescription, which says what each field means.
#pragma once

#include <cstdint>
#include <vector>

#include "packed/weight.h"

namespace quire {

// A packed weight and the bias of all its outputs (empty: none).
struct Linear {
  const PackedWeight* weight = nullptr;
  std::vector<float> bias;

  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

// cos and sin of every position, [positions][half].
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t positions = 0, half = 0;  // half 0: no rotation
};

// Norm weights; empty: there is no such norm.
using Norm = std::vector<float>;

struct Expert {
  Linear gate_up, down;
};

struct DecoderLayer {
  Linear qkv, o, gate_up, down;  // where there are experts, their MLPs stand for gate_up and down
  Linear router;                 // one output for each expert
  std::vector<Expert> experts;
  Norm attn_norm, attn_out_norm, mlp_norm, mlp_out_norm, q_norm, k_norm;
  RopeTable rope;
  int window = 0;
};

enum class QkNorm { none, head, whole };
enum class Activation { silu, gelu_tanh };

struct DecoderModel {
  int64_t hidden_size = 0, intermediate_size = 0, vocab_size = 0;
  int num_heads = 0, num_kv_heads = 0, head_size = 0;
  float norm_eps = 0, norm_offset = 0, attention_scale = 0, attention_softcap = 0, logit_softcap = 0, embedding_scale = 1;
  QkNorm qk_norm = QkNorm::none;
  Activation activation = Activation::silu;
  int64_t num_experts = 0, experts_per_token = 0;  // of each layer; 0: there are none
  bool normalise_experts = true;
  std::vector<DecoderLayer> layers;
  const PackedWeight* embed = nullptr;  // one row a token; may be the head's
  const PackedWeight* head = nullptr;
  Norm norm;

  // Rows of the MLP's products for each row of a step.
  int64_t slots_per_row() const { return num_experts > 0 ? experts_per_token : 1; }
  int64_t q_size() const { return int64_t(num_heads) * head_size; }
  int64_t kv_size() const { return int64_t(num_kv_heads) * head_size; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

}  // namespace quire
