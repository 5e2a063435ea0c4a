// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/cache_records.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <utility>

#include "flashjit/error.h"
#include "flashjit/tuning.h"

namespace flashjit::runtime {
namespace {

struct CheckedRecord {
  std::string bytes;
  std::optional<TuningRecord> record;  // nothing when it is damaged, or when this release cannot read it
  bool damaged = false;
};

CheckedRecord read_checked(cache::Layer& layer, const std::string& path) {
  cache::RecordLookup lookup = layer.read_record(path);
  CheckedRecord checked;
  checked.damaged = true;
  if (!lookup.bytes) return checked;
  checked.bytes = std::move(*lookup.bytes);
  try {
    TuningRecord record = parse_tuning_record(checked.bytes);
    checked.damaged = record_path(record.device, record.problem, record.bucket) != path;
    if (!checked.damaged) checked.record = std::move(record);
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
      if (!checked.record || !is_wanted(checked.record->device.architecture)) continue;
      checked.record->candidates.clear();
      found[stored.path] = only_chosen ? to_json(*checked.record) : std::move(checked.bytes);
    }
  }
  std::vector<cache::NewMember> members;
  for (auto& [path, bytes] : found) members.push_back({path, std::move(bytes)});
  return members;
}

void import_records(cache::Layer& bundle, cache::UserDirectoryLayer& user, CacheImport& result) {
  for (const cache::StoredRecord& stored : bundle.list_records()) {
    const CheckedRecord checked = read_checked(bundle, stored.path);
    if (!checked.record) {
      result.damaged.push_back(stored.location);
    } else if (read_checked(user, stored.path).record) {
      ++result.records_present;
    } else if (std::string problem; user.store_record(stored.path, checked.bytes, &problem)) {
      ++result.records;
    } else {
      throw Error(ErrorCode::io, fmt::format("{}: could not be stored: {}", stored.path, problem));
    }
  }
}

}  // namespace flashjit::runtime
