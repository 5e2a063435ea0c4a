// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/cache_records.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "flashjit/error.h"
#include "runtime/tuning/tuning_pass.h"

namespace flashjit::runtime {
namespace {

struct CheckedRecord {
  std::string bytes;
  bool damaged = true;
  bool readable = false;  // by this release, and in order: then
  std::string architecture;
  std::string only_chosen;  // the record without its candidates
};

template <class Pass>
void check(const std::string& path, CheckedRecord& checked) {
  typename Pass::Record record = Pass::parse_record(checked.bytes);
  checked.damaged = record_path(record.device, record.problem, record.bucket) != path;
  checked.readable = !checked.damaged;
  checked.architecture = record.device.architecture;
  record.candidates.clear();
  checked.only_chosen = to_json(record);
}

CheckedRecord read_checked(cache::Layer& layer, const std::string& path) {
  cache::RecordLookup lookup = layer.read_record(path);
  CheckedRecord checked;
  if (!lookup.bytes) return checked;
  checked.bytes = std::move(*lookup.bytes);
  try {
    (is_backward_record(path) ? check<BackwardPass> : check<ForwardPass>)(path, checked);
  } catch (const Error& error) {
    checked.damaged = error.code() != ErrorCode::unsupported;
  }
  return checked;
}

}  // namespace

std::vector<CacheRecord> list_records(const StoreLayer& layer) {
  std::vector<CacheRecord> records;
  for (cache::StoredRecord& stored : layer.layer->list_records()) {
    records.push_back({std::move(stored.path), layer.kind, std::move(stored.location), stored.bytes});
  }
  return records;
}

void verify_records(const StoreLayer& layer, CacheVerification& result) {
  for (CacheRecord& stored : list_records(layer)) {
    if (read_checked(*layer.layer, stored.path).damaged) {
      result.damaged.push_back({std::move(stored.path), layer.kind, std::move(stored.location), stored.bytes, 0, {}});
    } else {
      ++result.records;
    }
  }
}

std::vector<cache::NewMember> export_records(const CacheLayers& layers,
                                             const std::function<bool(const std::string&)>& is_wanted,
                                             bool only_chosen) {
  std::map<std::string, std::string> found;  // by path; that of the first layer
  for (const StoreLayer& layer : layers.all) {
    for (const cache::StoredRecord& stored : layer.layer->list_records()) {
      if (found.count(stored.path) != 0) continue;
      CheckedRecord checked = read_checked(*layer.layer, stored.path);
      if (!checked.readable || !is_wanted(checked.architecture)) continue;
      found[stored.path] = std::move(only_chosen ? checked.only_chosen : checked.bytes);
    }
  }
  std::vector<cache::NewMember> members;
  for (auto& [path, bytes] : found) members.push_back({path, std::move(bytes)});
  return members;
}

void import_records(cache::Layer& bundle, cache::UserDirectoryLayer& user, CacheImport& result) {
  for (const cache::StoredRecord& stored : bundle.list_records()) {
    const CheckedRecord checked = read_checked(bundle, stored.path);
    if (!checked.readable) {
      result.damaged.push_back(stored.location);
    } else if (read_checked(user, stored.path).readable) {
      ++result.records_present;
    } else if (std::string problem; user.store_record(stored.path, checked.bytes, &problem)) {
      ++result.records;
    } else {
      throw Error(ErrorCode::io, fmt::format("{}: could not be stored: {}", stored.path, problem));
    }
  }
}

}  // namespace flashjit::runtime
