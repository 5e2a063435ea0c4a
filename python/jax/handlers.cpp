// SPDX-License-Identifier: Apache-2.0
// The calls of flashjit/jax.py as handlers of XLA's foreign function interface, over the C interface. Nothing of Python
// is in here, so one build serves every interpreter; XLA refuses to register a handler of another major version of its
// interface. XLA calls handlers from threads of its own, and engines are thread-safe.
//
// Calls may allocate scratch memory in the order of the stream, which a handler must not do under XLA's command buffers
// (CUDA graphs): so these do not claim to be compatible with them, and XLA launches them between its command buffers.
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashjit.h"

namespace {

namespace ffi = xla::ffi;

// Null: the library's default one.
std::atomic<flashjit_engine*> engine_of_calls = nullptr;

struct Attributes {
  std::string_view operands, results;  // names in the order of the buffers, separated by commas
  bool causal;
  int64_t window_left, window_right, chunk;
  float scale, softcap;
  bool deterministic;
};

}  // namespace

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(Attributes, ffi::StructMember<std::string_view>("operands"),
                                      ffi::StructMember<std::string_view>("results"), ffi::StructMember<bool>("causal"),
                                      ffi::StructMember<int64_t>("window_left"),
                                      ffi::StructMember<int64_t>("window_right"), ffi::StructMember<int64_t>("chunk"),
                                      ffi::StructMember<float>("scale"), ffi::StructMember<float>("softcap"),
                                      ffi::StructMember<bool>("deterministic"));

namespace {

constexpr uint8_t kBool = 6;  // kDLBool, which DLPack has had since version 0.8

// Of no bits where the library has none, which it then refuses by the tensor's name.
DLDataType to_dtype(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::F16:
      return {kDLFloat, 16, 1};
    case ffi::DataType::BF16:
      return {kDLBfloat, 16, 1};
    case ffi::DataType::F32:
      return {kDLFloat, 32, 1};
    case ffi::DataType::S32:
      return {kDLInt, 32, 1};
    case ffi::DataType::PRED:
      return {kBool, 8, 1};
    default:
      return {kDLOpaqueHandle, 0, 0};
  }
}

// XLA's buffers are packed, and live as long as the call.
DLTensor view_of(const ffi::AnyBuffer& buffer, DLDeviceType device) {
  DLTensor view = {};
  view.data = buffer.untyped_data();
  view.device = {device, 0};  // the library asks the driver where memory is
  view.ndim = static_cast<int32_t>(buffer.dimensions().size());
  view.dtype = to_dtype(buffer.element_type());
  view.shape = const_cast<int64_t*>(buffer.dimensions().begin());
  return view;
}

struct NamedView {
  std::string_view name;
  DLTensor view;
};

class Views {
 public:
  // Takes the first of the names off.
  void add(std::string_view& names, const DLTensor& view) {
    const std::string_view name = names.substr(0, names.find(','));
    views_.push_back({name, view});
    names.remove_prefix(std::min(names.size(), name.size() + 1));
  }
  // Null: there is none of this name.
  const DLTensor* find(std::string_view name) const {
    for (const NamedView& named : views_) {
      if (named.name == name) return &named.view;
    }
    return nullptr;
  }

 private:
  std::vector<NamedView> views_;
};

Views views_of(std::string_view names, ffi::RemainingArgs buffers, DLDeviceType device) {
  Views views;
  for (size_t i = 0; i < buffers.size(); ++i) {
    views.add(names, view_of(buffers.get<ffi::AnyBuffer>(i).value(), device));
  }
  return views;
}

Views views_of(std::string_view names, ffi::RemainingRets buffers, DLDeviceType device) {
  Views views;
  for (size_t i = 0; i < buffers.size(); ++i) {
    views.add(names, view_of(*buffers.get<ffi::AnyBuffer>(i).value(), device));
  }
  return views;
}

struct TensorOption {
  std::string_view name;
  const DLTensor* flashjit_attention_options::*field;
};
constexpr TensorOption kTensorOptions[] = {
    {"alibi_slopes", &flashjit_attention_options::alibi_slopes},
    {"sinks", &flashjit_attention_options::sinks},
    {"bias", &flashjit_attention_options::bias},
    {"boolean_mask", &flashjit_attention_options::boolean_mask},
    {"documents", &flashjit_attention_options::documents},
    {"prefix", &flashjit_attention_options::prefix},
    {"seqused_kv", &flashjit_attention_options::seqused_kv},
    {"leftpad_kv", &flashjit_attention_options::leftpad_kv},
};

// window must live as long as the options.
flashjit_attention_options options_of(const Attributes& attributes, const Views& operands,
                                      const flashjit_window& window, void* stream) {
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  options.causal = attributes.causal;
  options.has_softmax_scale = 1;
  options.softmax_scale = attributes.scale;
  options.softcap = attributes.softcap;
  options.chunk = attributes.chunk;
  options.window = &window;
  options.stream = stream;
  for (const TensorOption& option : kTensorOptions) options.*option.field = operands.find(option.name);
  return options;
}

ffi::ErrorCode code_of(flashjit_status status) {
  switch (status) {
    case FLASHJIT_INVALID_ARGUMENT:
      return ffi::ErrorCode::kInvalidArgument;
    case FLASHJIT_UNSUPPORTED:
      return ffi::ErrorCode::kUnimplemented;
    case FLASHJIT_NO_DRIVER:
    case FLASHJIT_NO_DEVICE:
    case FLASHJIT_NO_COMPILER:
    case FLASHJIT_CACHE_MISS:
      return ffi::ErrorCode::kFailedPrecondition;
    default:
      return ffi::ErrorCode::kInternal;
  }
}

ffi::Error to_error(flashjit_status status) {
  if (status == FLASHJIT_OK) return ffi::Error::Success();
  return ffi::Error(code_of(status), std::string("flashjit: ") + flashjit_last_error());
}

// Where a call's buffers are, and where it runs.
struct Place {
  DLDeviceType device;
  void* stream;
};

ffi::Error forward(const Place& place, const Attributes& attributes, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const Views operands = views_of(attributes.operands, args, place.device);
  const Views results = views_of(attributes.results, rets, place.device);
  const flashjit_window window = {attributes.window_left, attributes.window_right};
  flashjit_attention_options options = options_of(attributes, operands, window, place.stream);
  options.lse = results.find("lse");
  return to_error(flashjit_attention(engine_of_calls, operands.find("q"), operands.find("k"), operands.find("v"),
                                     results.find("out"), &options));
}

ffi::Error backward(const Place& place, const Attributes& attributes, ffi::RemainingArgs args,
                    ffi::RemainingRets rets) {
  const Views operands = views_of(attributes.operands, args, place.device);
  const Views results = views_of(attributes.results, rets, place.device);
  const flashjit_window window = {attributes.window_left, attributes.window_right};
  const flashjit_attention_options options = options_of(attributes, operands, window, place.stream);
  flashjit_gradients into = FLASHJIT_GRADIENTS_INIT;
  into.dq = results.find("dq");
  into.dk = results.find("dk");
  into.dv = results.find("dv");
  into.dbias = results.find("dbias");
  into.dslopes = results.find("dslopes");
  into.dsinks = results.find("dsinks");
  into.deterministic = attributes.deterministic;
  return to_error(flashjit_attention_backward(engine_of_calls, operands.find("dout"), operands.find("q"),
                                              operands.find("k"), operands.find("v"), operands.find("out"),
                                              operands.find("lse"), operands.find("dlse"), &into, &options));
}

using Call = ffi::Error (*)(const Place&, const Attributes&, ffi::RemainingArgs, ffi::RemainingRets);

template <Call call>
ffi::Error on_stream(void* stream, Attributes attributes, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return call({kDLCUDA, stream}, attributes, args, rets);
}

template <Call call>
ffi::Error on_host(Attributes attributes, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return call({kDLCPU, nullptr}, attributes, args, rets);
}

auto bind_stream() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Attrs<Attributes>().RemainingArgs().RemainingRets();
}
auto bind_host() { return ffi::Ffi::Bind().Attrs<Attributes>().RemainingArgs().RemainingRets(); }

}  // namespace

#define FLASHJIT_EXPORT extern "C" __attribute__((visibility("default")))

// The engine of all calls that follow. It must live until the process ends.
FLASHJIT_EXPORT void flashjit_jax_use_engine(flashjit_engine* engine) { engine_of_calls = engine; }

FLASHJIT_EXPORT XLA_FFI_Error* flashjit_jax_attention_cuda(XLA_FFI_CallFrame* frame) {
  static const auto handler = bind_stream().To(on_stream<forward>);
  return handler->Call(frame);
}

FLASHJIT_EXPORT XLA_FFI_Error* flashjit_jax_attention_cpu(XLA_FFI_CallFrame* frame) {
  static const auto handler = bind_host().To(on_host<forward>);
  return handler->Call(frame);
}

FLASHJIT_EXPORT XLA_FFI_Error* flashjit_jax_attention_backward_cuda(XLA_FFI_CallFrame* frame) {
  static const auto handler = bind_stream().To(on_stream<backward>);
  return handler->Call(frame);
}

FLASHJIT_EXPORT XLA_FFI_Error* flashjit_jax_attention_backward_cpu(XLA_FFI_CallFrame* frame) {
  static const auto handler = bind_host().To(on_host<backward>);
  return handler->Call(frame);
}
