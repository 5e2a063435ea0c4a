// SPDX-License-Identifier: Apache-2.0
#include "runtime/call/movable_operation.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "runtime/call/validate.h"

namespace flashjit::runtime {
namespace {

constexpr int kPlanMemory = -1;  // in place of a tensor

// Tensors are put where no memory is, twice, each far from all others and aligned as it is. Both halves of every
// address differ then, while a word of arguments that is none has at least one half that is the same in both: so what
// is at the same tensor in both is an address.
constexpr std::uintptr_t kApart = std::uintptr_t{1} << 44;  // more than a device has
constexpr std::uintptr_t kShift = (std::uintptr_t{1} << 40) + (std::uintptr_t{1} << 20);
constexpr std::uintptr_t kMostAlignment = 4096;  // that anything asks of a tensor, and more

std::vector<std::uintptr_t> nowhere(const GivenCall& call, std::uintptr_t shift) {
  const CallTensors tensors(call);
  std::vector<std::uintptr_t> addresses;
  for (int i = 0; i < tensors.size(); ++i)
    addresses.push_back(static_cast<std::uintptr_t>(i + 1) * kApart + shift + tensors.address(i) % kMostAlignment);
  // Values in the memory of the keys stay there.
  if (call.v.data == call.k.data) addresses[CallTensors::kValues] = addresses[CallTensors::kKeys];
  return addresses;
}

CallWithBatch moved(const GivenCall& call, const std::vector<std::uintptr_t>& addresses) {
  const CallElsewhere elsewhere(call, addresses);
  return {elsewhere.q, elsewhere.k, elsewhere.v, elsewhere.out, elsewhere.opts};
}

ForwardCall validated(const CallWithBatch& with) {
  ForwardCall call = validate_inputs(with.q, with.k, with.v, with.opts);
  validate_out(call, with.out);
  return call;
}

int tensor_at(const std::vector<std::uintptr_t>& addresses, std::uintptr_t begin) noexcept {
  const auto at = std::find(addresses.begin(), addresses.end(), begin);
  return at == addresses.end() ? kPlanMemory : static_cast<int>(at - addresses.begin());
}

std::uintptr_t word_at(const Launch& launch, std::size_t offset) noexcept {
  std::uintptr_t word;
  std::memcpy(&word, launch.arguments + offset, sizeof(word));
  return word;
}

// Between arguments there may be bytes that nobody has written. That such are taken for an address does no harm.
std::vector<MovableOperation::Place> places_of(const Launch& launch, const std::vector<std::uintptr_t>& addresses,
                                               const Launch& shifted) {
  std::vector<MovableOperation::Place> places;
  for (std::size_t offset = 0; offset + sizeof(std::uintptr_t) <= launch.argument_bytes;
       offset += sizeof(std::uintptr_t)) {
    const std::uintptr_t word = word_at(launch, offset);
    if (word_at(shifted, offset) - word != kShift) continue;
    for (int i = 0; const std::uintptr_t address : addresses) {
      if (word - address < kApart / 2) places.push_back({offset, i, word - address});
      ++i;
    }
  }
  return places;
}

}  // namespace

MovableOperation::MovableOperation(const GivenCall& call, const generator::KernelSpec& kernel,
                                   const DeviceLimits& limits)
    : layout_(call), with_(moved(call, nowhere(call, 0))), addresses_(nowhere(call, 0)) {
  const CallWithBatch shifted_with = moved(call, nowhere(call, kShift));
  const ForwardCall made = validated(with_), shifted_call = validated(shifted_with);
  // With a plan it is empty. Of other calls nothing is launched, so it need not stay.
  std::vector<std::byte> scratch(Operation::scratch_bytes(made, kernel, limits));
  const Operation operation(made, kernel, limits, scratch.data()),
      shifted(shifted_call, kernel, limits, scratch.data());
  const Launch* of_launch = shifted.begin();
  for (const Launch& launch : operation) {
    MovableLaunch& movable = launches_.emplace_back();
    movable.launch = launch;
    movable.launch.map_count = 0;
    movable.places = places_of(launch, addresses_, *of_launch++);
    for (const MapPlace& map : std::span(launch.maps, static_cast<std::size_t>(launch.map_count)))
      movable.maps.push_back({map, tensor_at(addresses_, reinterpret_cast<std::uintptr_t>(map.tensor->data))});
  }
  for (const Operand& operand : made.operands)
    if (!operand.range.empty())
      spans_.push_back({tensor_at(addresses_, operand.range.begin), operand.range, operand.written});
  std::stable_partition(spans_.begin(), spans_.end(), [](const Span& span) { return span.written; });
}

bool MovableOperation::serves(const GivenCall& call, const CallTensors& tensors) const noexcept {
  if (!layout_.is_of(call, tensors)) return false;
  for (int i = 0; i < tensors.size(); ++i)
    if (tensors.address(i) == 0 || (tensors.address(i) - addresses_[static_cast<std::size_t>(i)]) % kAlignment != 0)
      return false;
  std::array<MemoryRange, Operands::kMost> ranges;
  std::size_t count = 0, written = 0;
  for (const Span& span : spans_) {
    MemoryRange& range = ranges[count++] = span.range;
    written += span.written ? 1 : 0;
    if (span.tensor == kPlanMemory) continue;
    const std::uintptr_t moved_by = tensors.address(span.tensor) - addresses_[static_cast<std::size_t>(span.tensor)];
    range.begin += moved_by, range.end += moved_by;
  }
  for (std::size_t i = 0; i < written; ++i)
    for (std::size_t j = i + 1; j < count; ++j)
      if (overlap(ranges[i], ranges[j])) return false;
  return true;
}

void MovableOperation::MovableLaunch::write(const CallTensors& tensors, std::byte* arguments) const noexcept {
  std::memcpy(arguments, launch.arguments, launch.argument_bytes);
  for (const Place& place : places) {
    const std::uintptr_t address = tensors.address(place.tensor) + place.behind;
    std::memcpy(arguments + place.offset, &address, sizeof(address));
  }
}

}  // namespace flashjit::runtime
