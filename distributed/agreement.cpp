// SPDX-License-Identifier: Apache-2.0
// Ranks agree on variants: those that the first rank would choose.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distributed/checks.h"
#include "distributed/rehearsal.h"
#include "distributed/reject.h"
#include "distributed/workspace.h"
#include "flashjit/version.h"

namespace flashjit::distributed {
namespace {

// What the first rank tells the others: texts, of which each is read as it was written.
class Texts {
 public:
  Texts() = default;
  explicit Texts(std::string bytes) : bytes_(std::move(bytes)) {}

  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  void put(std::uint64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  std::string take() {
    const std::uint64_t size = take_number();
    return take(size);
  }
  std::uint64_t take_number() {
    const std::string bytes = take(sizeof(std::uint64_t));
    std::uint64_t number = 0;
    std::memcpy(&number, bytes.data(), sizeof number);
    return number;
  }
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string take(std::uint64_t size) {
    if (size > bytes_.size() - at_)
      throw Error(ErrorCode::communication, "group: what the first rank chose was cut off");
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

  std::string bytes_;
  std::size_t at_ = 0;
};

template <typename Record>
void put_all(Texts& texts, std::vector<Record> records) {
  texts.put(records.size());
  for (Record& record : records) {
    record.candidates.clear();  // which nobody chooses from any more
    texts.put(to_json(record));
  }
}

template <typename Record>
std::vector<Record> take_all(Texts& texts, Record (*parse)(std::string_view)) {
  std::vector<Record> records;
  for (std::uint64_t left = texts.take_number(); left > 0; --left) records.push_back(parse(texts.take()));
  return records;
}

// The policy counts, too: where it is off no record does. An engine that emulates knows no records.
Texts choices_of(const Engine& engine, int device) {
  Texts texts;
  texts.put(version());
  const bool has_records = !engine.emulates() && engine.system().tuning != TuningPolicy::off;
  put_all(texts, has_records ? engine.tuning_records(device) : std::vector<TuningRecord>());
  put_all(texts, has_records ? engine.backward_tuning_records(device) : std::vector<BackwardTuningRecord>());
  return texts;
}

void take_choices(Engine& engine, int device, Texts texts) {
  if (const std::string first = texts.take(); first != version())
    throw Error(ErrorCode::unsupported,
                fmt::format("version: must be {} as on the first rank, was {}", first, version()));
  const auto records = take_all(texts, parse_tuning_record);
  const auto backward_records = take_all(texts, parse_backward_tuning_record);
  if (!engine.emulates()) engine.use_records(records, backward_records, device);
}

void send(Transport& transport, const HostTensor& memory) {
  const DeviceTensor there = memory.to_device(nullptr, transport.device());
  Exchange exchange;
  for (int peer = 1; peer < transport.size(); ++peer) exchange.sends.push_back({peer, there.view()});
  transport.finish(transport.start(exchange, nullptr), nullptr);
  transport.wait();
}

void receive(Transport& transport, HostTensor& memory) {
  const DeviceTensor there = DeviceTensor::allocate(memory.dtype(), memory.shape(), nullptr, transport.device());
  transport.finish(transport.start({{}, {{0, there.view()}}}, nullptr), nullptr);
  memory = HostTensor::from_device(there);
}

// On every rank what the first one has.
Texts broadcast(Transport& transport, const Texts& own) {
  HostTensor size(DType::i64, {1});
  auto bytes = static_cast<std::int64_t>(own.bytes().size());
  if (transport.rank() == 0) {
    std::memcpy(size.data(), &bytes, sizeof bytes);
    send(transport, size);
    HostTensor content(DType::boolean, {bytes});
    std::memcpy(content.data(), own.bytes().data(), own.bytes().size());
    send(transport, content);
    return own;
  }
  receive(transport, size);
  std::memcpy(&bytes, size.data(), sizeof bytes);
  HostTensor content(DType::boolean, {bytes});
  receive(transport, content);
  return Texts(std::string(static_cast<const char*>(content.data()), static_cast<std::size_t>(bytes)));
}

}  // namespace

void agree(Engine& engine, Group& group) {
  check_memory(engine, group);
  Transport& transport = group.transport();
  together(group, [&] {
    const Texts own = transport.rank() == 0 ? choices_of(engine, transport.device()) : Texts();
    take_choices(engine, transport.device(), broadcast(transport, own));
  });
}

}  // namespace flashjit::distributed
