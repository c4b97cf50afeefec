#include "decoder/plan.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "common/checks.h"
#include "common/error.h"
#include "common/pool.h"

namespace quire {
namespace {

void require(bool holds, const std::string& message) {
  if (!holds) refuse(message);
}

void check_weight(const std::string& name, const PackedWeight* weight, int64_t rows, int64_t cols) {
  const auto shape = [](int64_t n, int64_t k) {
    const int64_t sizes[] = {n, k};
    return list_of(sizes, 2);
  };
  require(weight != nullptr, name + " must be a PackedWeight of shape " + shape(rows, cols));
  require(weight->rows() == rows && weight->cols() == cols,
          name + " must have shape " + shape(rows, cols) + ", got " + shape(weight->rows(), weight->cols()));
}

void check_size(const char* name, int64_t size) {
  require(size >= 1, std::string(name) + " must be 1 or more, got " + std::to_string(size));
}

// What a model of this kind would not look at.
void check_absent(const std::string& name, bool absent, const std::string& where) {
  require(absent, name + " must be None where " + where);
}

void check_absent(const std::string& name, const Linear& linear, const std::string& where) {
  check_absent(name, linear.weight == nullptr, where);
  check_absent(name + "_bias", linear.bias.empty(), where);
}

void check_vector(const std::string& name, const std::vector<float>& values, int64_t size, bool optional = true) {
  require((optional && values.empty()) || int64_t(values.size()) == size,
          name + " must have " + std::to_string(size) + " numbers, got " + std::to_string(values.size()));
}

void check_linear(const std::string& name, const Linear& linear, int64_t rows, int64_t cols) {
  check_weight(name, linear.weight, rows, cols);
  check_vector(name + "_bias", linear.bias, rows);
}

// Of a layer or of one of its experts.
void check_mlp(const std::string& at, const Linear& gate_up, const Linear& down, const DecoderModel& m) {
  check_linear(at + "gate_up", gate_up, 2 * m.intermediate_size, m.hidden_size);
  check_linear(at + "down", down, m.hidden_size, m.intermediate_size);
}

// Records of all experts' rows lie side by side, so they are of one kind.
void check_experts(const std::string& at, const DecoderLayer& layer, const DecoderModel& m) {
  for (const auto& [name, linear] : {std::pair("gate_up", &layer.gate_up), std::pair("down", &layer.down)})
    check_absent(at + name, *linear, "there are experts");
  check_linear(at + "router", layer.router, m.num_experts, m.hidden_size);
  require(layer.router.weight->input() == InputKind::plain, at + "router must be f32 or f16");
  const Expert& first = layer.experts.front();
  for (size_t i = 0; i < layer.experts.size(); ++i) {
    const Expert& expert = layer.experts[i];
    const std::string name = at + "experts[" + std::to_string(i) + "].";
    check_mlp(name, expert.gate_up, expert.down, m);
    require(expert.gate_up.weight->input() == first.gate_up.weight->input() &&
                expert.down.weight->input() == first.down.weight->input(),
            name + "gate_up and down must read their input in the form in which those of the first expert do");
  }
}

void check_qk_norm(const std::string& name, const Norm& norm, const DecoderModel& m, int64_t all_heads) {
  if (m.qk_norm == QkNorm::none) return check_absent(name, norm.empty(), "qk_norm is none");
  check_vector(name, norm, m.qk_norm == QkNorm::whole ? all_heads : m.head_size, false);
}

DecoderModel checked(DecoderModel m) {
  check_size("hidden_size", m.hidden_size);
  check_size("intermediate_size", m.intermediate_size);
  check_size("vocab_size", m.vocab_size);
  require(m.num_kv_heads >= 1 && m.num_heads >= 1 && m.num_heads % m.num_kv_heads == 0,
          "num_heads is " + std::to_string(m.num_heads) + ", which is not a multiple of num_kv_heads " +
              std::to_string(m.num_kv_heads));
  require(m.head_size >= 1 && m.head_size <= 512, "head_size must be between 1 and 512, got " + std::to_string(m.head_size));
  require(!m.layers.empty(), "layers must not be empty");
  m.num_experts = int64_t(m.layers.front().experts.size());
  if (m.num_experts == 0)
    require(m.experts_per_token == 0,
            "experts_per_token must be 0 where there are no experts, got " + std::to_string(m.experts_per_token));
  else
    require(m.experts_per_token >= 1 && m.experts_per_token <= m.num_experts,
            "experts_per_token must be between 1 and the " + std::to_string(m.num_experts) + " experts, got " +
                std::to_string(m.experts_per_token));
  check_weight("embed", m.embed, m.vocab_size, m.hidden_size);
  check_weight("head", m.head, m.vocab_size, m.hidden_size);
  check_vector("norm", m.norm, m.hidden_size, false);
  for (size_t i = 0; i < m.layers.size(); ++i) {
    const DecoderLayer& layer = m.layers[i];
    const std::string at = "layers[" + std::to_string(i) + "].";
    require(int64_t(layer.experts.size()) == m.num_experts, at + "experts must be " + std::to_string(m.num_experts) +
                                                                ", as in the first layer, got " +
                                                                std::to_string(layer.experts.size()));
    check_linear(at + "qkv", layer.qkv, m.qkv_size(), m.hidden_size);
    check_linear(at + "o", layer.o, m.hidden_size, m.q_size());
    if (layer.experts.empty()) {
      check_mlp(at, layer.gate_up, layer.down, m);
      check_absent(at + "router", layer.router, "there are no experts");
    } else {
      check_experts(at, layer, m);
    }
    check_vector(at + "attn_norm", layer.attn_norm, m.hidden_size);
    check_vector(at + "attn_out_norm", layer.attn_out_norm, m.hidden_size);
    check_vector(at + "mlp_norm", layer.mlp_norm, m.hidden_size);
    check_vector(at + "mlp_out_norm", layer.mlp_out_norm, m.hidden_size);
    check_qk_norm(at + "q_norm", layer.q_norm, m, m.q_size());
    check_qk_norm(at + "k_norm", layer.k_norm, m, m.kv_size());
    require(2 * layer.rope.half <= m.head_size, at + "cos has " + std::to_string(layer.rope.half) +
                                                    " columns, more than half of the head size " + std::to_string(m.head_size));
    require(layer.window >= 0, at + "window must be 0 (none) or more, got " + std::to_string(layer.window));
  }
  return m;
}

}  // namespace

DecoderPlan::DecoderPlan(DecoderModel model) : model_(checked(std::move(model))) {}

// Sizes are powers of two, so that steps of many lengths allocate a few times only.
Workspace& DecoderPlan::workspace(const Isa& isa, int64_t tokens) {
  if (!workspace_ || workspace_->max_tokens < tokens || workspace_->packed != isa.packed) {
    workspace_.reset();
    workspace_ = std::make_unique<Workspace>(model_, *isa.packed, int64_t(std::bit_ceil(uint64_t(tokens))));
  }
  return *workspace_;
}

void DecoderPlan::forward(const Isa& isa, const StepInput& input) {
  const std::lock_guard lock(mutex_);
  DecoderStep(model_, isa, workspace(isa, input.num_tokens), input).run();
}

int64_t DecoderPlan::workspace_bytes() {
  const std::lock_guard lock(mutex_);
  return workspace_ ? workspace_->num_bytes() : 0;
}

void DecoderPlan::logits(const Isa& isa, const float* hidden, int64_t rows, float* out) {
  const std::lock_guard lock(mutex_);
  const Workspace& work = workspace(isa, 1);
  const PackedWeight& head = *model_.head;
  const InputKind kind = head.input();
  const int64_t width = model_.hidden_size, record = isa.packed->record_bytes(kind, width);
  for (int64_t done = 0; done < rows; done += work.max_tokens) {  // as many rows at a time as there are records
    const int64_t count = std::min(rows - done, work.max_tokens);
    const float* x = hidden + done * width;
    float* to = out + done * model_.vocab_size;
    const int threads = threads_for(double(count) * double(head.rows() * width));
    const ProductCut cut = cut_product(head, count, threads);
    struct Context {
      const Isa& isa;
      const DecoderModel& model;
      LinearInput input;
      LinearOutput output;
      ProductCut cut;
      uint8_t* records;
      int64_t record;
    } context{isa, model_, {x, width, count, work.records}, {to, model_.vocab_size, nullptr, false}, cut, work.records, record};
    Program program;
    program.counts = {record > 0 ? int32_t(count) : 0, int32_t(cut.items),
                      model_.logit_softcap > 0 ? int32_t(count) : 0};
    program.context = &context;
    program.run = [](void* pointer, int32_t operation, int32_t item, int) noexcept {
      const Context& c = *static_cast<Context*>(pointer);
      const int64_t cols = c.model.hidden_size, vocab = c.model.vocab_size;
      if (operation == 0) {
        c.isa.packed->prepare_row(c.model.head->input(), c.input.x + item * cols, cols, c.records + item * c.record);
      } else if (operation == 1) {
        multiply_item(c.isa, *c.model.head, c.input, c.output, c.cut, item);
      } else {
        c.isa.kernels->softcap_row(c.output.out + item * vocab, vocab, c.model.logit_softcap);
      }
    };
    run_program(program, threads);
  }
}

}  // namespace quire
