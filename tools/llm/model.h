// A model of a GGUF file. What the file says is read at once; the weights are loaded when the
// caller has looked at it.
#pragma once

#include <memory>
#include <string>

#include "tools/gguf/file.h"
#include "tools/llm/network.h"
#include "tools/llm/shape.h"
#include "tools/llm/weights.h"
#include "tools/tokeniser/tokeniser.h"

namespace kvc::llm {

class Model {
 public:
  // Throws std::runtime_error that says what is wrong with the file, or what of it is not served.
  explicit Model(const std::string& path)
      : file_(path), shape_(read_shape(file_)), tokeniser_(file_) {}
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Pool and kernels are borrowed. Throws as load_weights() does.
  Network& load(const LoadOptions& options, WorkerPool& pool, const BlockKernels& kernels) {
    weights_ = load_weights(file_, shape_, options, pool, kernels);
    network_ = std::make_unique<Network>(shape_, weights_, pool, kernels);
    return *network_;
  }

  const gguf::File& file() const { return file_; }
  const Shape& shape() const { return shape_; }
  const tokeniser::Tokeniser& tokeniser() const { return tokeniser_; }
  std::string name() const {
    return std::string(file_.text("general.name").value_or("a model without a name"));
  }
  int64_t parameters() const {
    int64_t count = 0;
    for (const gguf::Tensor& tensor : file_.tensors()) count += tensor.elements();
    return count;
  }

 private:
  gguf::File file_;
  Shape shape_;
  tokeniser::Tokeniser tokeniser_;
  Weights weights_;
  std::unique_ptr<Network> network_;
};

}  // namespace kvc::llm
