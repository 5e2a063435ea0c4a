// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/tuning_records.h"

#include <algorithm>
#include <utility>

#include "cache/digest.h"
#include "cache/record_path.h"
#include "generator/variant_space.h"

namespace flashjit::runtime {

struct TuningRecords::Wanted {
  Wanted(const DeviceIdentity& on, const Problem& of, const ShapeBucket& in)
      : device(on), problem(tuning_class(of)), bucket(in), path(record_path(on, of, in)) {}

  const DeviceIdentity& device;
  const Problem problem;  // a class; what is legal for it is legal for all that are of it
  const ShapeBucket bucket;
  const std::string path;

  // Throws Error(invalid_argument) when the record is not what its name says, and Error(unsupported) when what it
  // chooses is not legal.
  void require(const TuningRecord& record) const {
    if (!(record.device == device)) refuse("device", slug(device), slug(record.device));
    if (!(record.problem == problem)) refuse("problem", to_string(problem), to_string(record.problem));
    if (!(record.bucket == bucket)) refuse("bucket", to_string(bucket), to_string(record.bucket));
    const std::string why = generator::why_illegal(problem, record.chosen, find_architecture(device.architecture));
    if (!why.empty()) throw Error(ErrorCode::unsupported, fmt::format("chooses what is not legal here: {}", why));
  }

 private:
  [[noreturn]] static void refuse(const char* what, const std::string& wanted, const std::string& found) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: must be {}, was {}", what, wanted, found));
  }
};

TuningRecords::TuningRecords(TuningRecordsOptions options, const Logger& log)
    : options_(std::move(options)), log_(log) {
  for (const std::string_view summary : options_.builtin) {
    try {
      summaries_.emplace_back(summary);
    } catch (const Error& error) {
      log_(LogLevel::warning, "records inside the library: {}", error.what());
    }
  }
}

TuningRecords::Shared TuningRecords::find(const DeviceIdentity& device, const Problem& problem,
                                          const ShapeBucket& bucket) {
  const Wanted wanted(device, problem, bucket);
  const std::lock_guard lock(mutex_);
  return find_locked(wanted);
}

TuningRecords::Shared TuningRecords::find_locked(const Wanted& wanted) {
  if (const auto known = known_.find(wanted.path); known != known_.end()) return known->second;
  Shared found = find_in_layers(wanted);
  if (!found) found = find_builtin(wanted);
  return known_[wanted.path] = std::move(found);
}

TuningRecords::Shared TuningRecords::find_again(const DeviceIdentity& device, const Problem& problem,
                                                const ShapeBucket& bucket) {
  const Wanted wanted(device, problem, bucket);
  const std::lock_guard lock(mutex_);
  Shared found = find_in_layers(wanted);
  if (!found) return find_locked(wanted);
  return known_[wanted.path] = std::move(found);
}

TuningRecords::Shared TuningRecords::find_in_layers(const Wanted& wanted) {
  for (const StoreLayer& layer : options_.layers) {
    if (Shared found = find_in(layer, wanted)) return found;
  }
  return nullptr;
}

TuningRecords::Shared TuningRecords::find_in(const StoreLayer& layer, const Wanted& wanted) {
  const cache::RecordLookup lookup = layer.layer->read_record(wanted.path);
  try {
    if (lookup.damaged) throw Error(ErrorCode::invalid_argument, "must be a file of ours and whole, is not");
    if (!lookup.bytes) return nullptr;
    TuningRecord record = parse_tuning_record(*lookup.bytes);
    wanted.require(record);
    log_(LogLevel::debug, "{} {}: tuned, from {}", to_string(wanted.problem), to_string(wanted.bucket),
         lookup.location);
    return std::make_shared<const TuningRecord>(std::move(record));
  } catch (const Error& error) {
    return refuse(layer, wanted, lookup.location, error);
  }
}

// What another release may have written stays where it is: that release can use it.
TuningRecords::Shared TuningRecords::refuse(const StoreLayer& layer, const Wanted& wanted, const std::string& location,
                                            const Error& error) {
  if (refused_.insert(location).second) {
    ++damaged_;
    log_(LogLevel::warning, "{}: counts as no record: {}", location, error.what());
  }
  const bool is_damage = error.code() == ErrorCode::invalid_argument;
  if (is_damage && layer.kind == CacheLayer::user && options_.user) options_.user->set_aside_record(wanted.path);
  return nullptr;
}

TuningRecords::Shared TuningRecords::find_builtin(const Wanted& wanted) {
  for (const TuningSummary& summary : summaries_) {
    if (!(summary.device() == wanted.device)) continue;
    try {
      auto record = summary.find(wanted.problem, wanted.bucket);
      if (!record) continue;
      wanted.require(*record);
      return std::make_shared<const TuningRecord>(std::move(*record));
    } catch (const Error& error) {  // a release with other variants than when it was measured
      log_(LogLevel::warning, "{}, inside the library: counts as no record: {}", wanted.path, error.what());
    }
  }
  return nullptr;
}

const std::map<std::string, TuningRecords::Shared>& TuningRecords::all_builtin() {
  if (std::exchange(builtin_read_, true)) return builtin_;
  for (const std::string_view summary : options_.builtin) {
    try {
      for (TuningRecord& record : parse_summary(summary)) {
        std::string path = record_path(record.device, record.problem, record.bucket);
        builtin_[std::move(path)] = std::make_shared<const TuningRecord>(std::move(record));
      }
    } catch (const Error& error) {
      log_(LogLevel::warning, "records inside the library: {}", error.what());
    }
  }
  return builtin_;
}

std::set<std::string> TuningRecords::paths() {
  std::set<std::string> paths;
  for (const StoreLayer& layer : options_.layers) {
    for (cache::StoredRecord& stored : layer.layer->list_records()) paths.insert(std::move(stored.path));
  }
  for (const auto& [path, record] : all_builtin()) paths.insert(path);
  for (const auto& [path, record] : known_) paths.insert(path);
  return paths;
}

std::vector<TuningRecords::Shared> TuningRecords::all(const DeviceIdentity& device) {
  const std::string folder = std::string(cache::kRecordsDirectory) + '/' + slug(device) + '/';
  const std::lock_guard lock(mutex_);
  std::vector<Shared> records;
  for (const std::string& path : paths()) {
    if (!path.starts_with(folder)) continue;
    try {
      const std::size_t end = path.size() - cache::kRecordSuffix.size();
      const std::size_t dot = path.rfind('.', end - 1);  // a problem may have dots, a bucket has none
      const Problem problem = parse_problem(std::string_view(path).substr(folder.size(), dot - folder.size()));
      const ShapeBucket bucket = parse_shape_bucket(std::string_view(path).substr(dot + 1, end - dot - 1));
      if (Shared record = find_locked({device, problem, bucket})) records.push_back(std::move(record));
    } catch (const Error&) {  // a file of others
    }
  }
  return records;
}

std::vector<Variant> TuningRecords::chosen(const Problem& problem, const Architecture& architecture) {
  const std::string file = to_string(tuning_class(problem)) + '.';
  const std::lock_guard lock(mutex_);
  std::vector<Variant> variants;
  for (const std::string& path : paths()) {
    if (!cache::parse_record_path(path)->file.starts_with(file)) continue;
    const Shared record = find_of_any_device(path);
    if (!record || record->device.architecture != architecture.name) continue;
    const bool is_new = std::find(variants.begin(), variants.end(), record->chosen) == variants.end();
    if (is_new && generator::why_illegal(problem, record->chosen, architecture).empty())
      variants.push_back(record->chosen);
  }
  return variants;
}

// Not to be used by calls here, so what is wrong with it is of no interest.
TuningRecords::Shared TuningRecords::find_of_any_device(const std::string& path) {
  if (const auto known = known_.find(path); known != known_.end() && known->second) return known->second;
  for (const StoreLayer& layer : options_.layers) {
    const cache::RecordLookup lookup = layer.layer->read_record(path);
    try {
      if (!lookup.bytes) continue;
      TuningRecord record = parse_tuning_record(*lookup.bytes);
      if (record_path(record.device, record.problem, record.bucket) == path)
        return std::make_shared<const TuningRecord>(std::move(record));
    } catch (const Error&) {
    }
  }
  const auto builtin = all_builtin().find(path);
  return builtin == all_builtin().end() ? nullptr : builtin->second;
}

std::string TuningRecords::keep(TuningRecord record) {
  const std::string path = record_path(record.device, record.problem, record.bucket);
  std::string problem;
  const auto file = options_.user ? options_.user->store_record(path, to_json(record), &problem) : std::nullopt;
  const std::lock_guard lock(mutex_);
  known_[path] = std::make_shared<const TuningRecord>(std::move(record));
  if (options_.user && !file && !std::exchange(warned_of_writes_, true)) {
    log_(LogLevel::warning, "{}: could not be stored: {}; records that cannot are kept in memory only", path, problem);
  }
  return file.value_or("");
}

std::optional<cache::EntryLock> TuningRecords::lock(const DeviceIdentity& device, const Problem& problem,
                                                    const ShapeBucket& bucket) {
  if (!options_.user) return std::nullopt;
  const std::string path = record_path(device, problem, bucket);
  return options_.user->lock({.name = path, .inputs = cache::digest_of(path), .compiler = {}});
}

std::uint64_t TuningRecords::damaged() const {
  const std::lock_guard lock(mutex_);
  return damaged_;
}

}  // namespace flashjit::runtime
