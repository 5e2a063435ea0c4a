// SPDX-License-Identifier: Apache-2.0
#include "runtime/tuning/tuning_records.h"

#include <algorithm>
#include <utility>

#include "cache/digest.h"
#include "cache/record_path.h"

namespace flashjit::runtime {
namespace {

std::string folder_of(const DeviceIdentity& device) {
  return std::string(cache::kRecordsDirectory) + '/' + slug(device) + '/';
}

}  // namespace

template <class Pass>
struct TuningRecordsOf<Pass>::Wanted {
  Wanted(const DeviceIdentity& on, const Problem& of, const ShapeBucket& in)
      : device(on), problem(tuning_class(of)), bucket(in), path(record_path(on, of, in)) {}

  const DeviceIdentity& device;
  const Problem problem;  // a class; what is legal for it is legal for all that are of it
  const ShapeBucket bucket;
  const std::string path;

  // Throws Error(invalid_argument) when the record is not what its name says, and Error(unsupported) when what it
  // chooses is not legal.
  void require(const Record& record) const {
    if (!(record.device == device)) refuse("device", slug(device), slug(record.device));
    if (!(record.problem == problem)) refuse("problem", to_string(problem), to_string(record.problem));
    if (!(record.bucket == bucket)) refuse("bucket", to_string(bucket), to_string(record.bucket));
    const std::string why = Pass::why_illegal(problem, record.chosen, find_architecture(device.architecture));
    if (!why.empty()) throw Error(ErrorCode::unsupported, fmt::format("chooses what is not legal here: {}", why));
  }

 private:
  [[noreturn]] static void refuse(const char* what, const std::string& wanted, const std::string& found) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: must be {}, was {}", what, wanted, found));
  }
};

template <class Pass>
TuningRecordsOf<Pass>::TuningRecordsOf(TuningRecordsOptions options, const Logger& log)
    : options_(std::move(options)), log_(log) {
  for (const std::string_view summary : options_.builtin) {
    try {
      summaries_.emplace_back(summary);
    } catch (const Error& error) {
      log_(LogLevel::warning, "records inside the library: {}", error.what());
    }
  }
}

template <class Pass>
auto TuningRecordsOf<Pass>::find(const DeviceIdentity& device, const Problem& problem, const ShapeBucket& bucket)
    -> Shared {
  const Wanted wanted(device, problem, bucket);
  const std::lock_guard lock(mutex_);
  return find_locked(wanted);
}

template <class Pass>
auto TuningRecordsOf<Pass>::find_locked(const Wanted& wanted) -> Shared {
  if (const auto known = known_.find(wanted.path); known != known_.end()) return known->second;
  if (given_.count(slug(wanted.device)) != 0) return nullptr;
  Shared found = find_in_layers(wanted);
  if (!found) found = find_builtin(wanted);
  return known_[wanted.path] = std::move(found);
}

template <class Pass>
auto TuningRecordsOf<Pass>::find_again(const DeviceIdentity& device, const Problem& problem, const ShapeBucket& bucket)
    -> Shared {
  const Wanted wanted(device, problem, bucket);
  const std::lock_guard lock(mutex_);
  Shared found = given_.count(slug(device)) == 0 ? find_in_layers(wanted) : nullptr;
  if (!found) return find_locked(wanted);
  return known_[wanted.path] = std::move(found);
}

template <class Pass>
auto TuningRecordsOf<Pass>::find_in_layers(const Wanted& wanted) -> Shared {
  for (const StoreLayer& layer : options_.layers) {
    if (Shared found = find_in(layer, wanted)) return found;
  }
  return nullptr;
}

template <class Pass>
auto TuningRecordsOf<Pass>::find_in(const StoreLayer& layer, const Wanted& wanted) -> Shared {
  const cache::RecordLookup lookup = layer.layer->read_record(wanted.path);
  try {
    if (lookup.damaged) throw Error(ErrorCode::invalid_argument, "must be a file of ours and whole, is not");
    if (!lookup.bytes) return nullptr;
    Record record = Pass::parse_record(*lookup.bytes);
    wanted.require(record);
    log_(LogLevel::debug, "{} {}: tuned, from {}", to_string(wanted.problem), to_string(wanted.bucket),
         lookup.location);
    return std::make_shared<const Record>(std::move(record));
  } catch (const Error& error) {
    return refuse(layer, wanted, lookup.location, error);
  }
}

// What another release may have written stays where it is: that release can use it.
template <class Pass>
auto TuningRecordsOf<Pass>::refuse(const StoreLayer& layer, const Wanted& wanted, const std::string& location,
                                   const Error& error) -> Shared {
  if (refused_.insert(location).second) {
    ++damaged_;
    log_(LogLevel::warning, "{}: counts as no record: {}", location, error.what());
  }
  const bool is_damage = error.code() == ErrorCode::invalid_argument;
  if (is_damage && layer.kind == CacheLayer::user && options_.user) options_.user->set_aside_record(wanted.path);
  return nullptr;
}

template <class Pass>
auto TuningRecordsOf<Pass>::find_builtin(const Wanted& wanted) -> Shared {
  if constexpr (Pass::kHasBuiltinRecords) {
    for (const TuningSummary& summary : summaries_) {
      if (!(summary.device() == wanted.device)) continue;
      try {
        auto record = summary.find(wanted.problem, wanted.bucket);
        if (!record) continue;
        wanted.require(*record);
        return std::make_shared<const Record>(std::move(*record));
      } catch (const Error& error) {  // a release with other variants than when it was measured
        log_(LogLevel::warning, "{}, inside the library: counts as no record: {}", wanted.path, error.what());
      }
    }
  }
  return nullptr;
}

template <class Pass>
auto TuningRecordsOf<Pass>::all_builtin() -> const std::map<std::string, Shared>& {
  if (std::exchange(builtin_read_, true)) return builtin_;
  if constexpr (Pass::kHasBuiltinRecords) {
    for (const std::string_view summary : options_.builtin) {
      try {
        for (Record& record : parse_summary(summary)) {
          std::string path = record_path(record.device, record.problem, record.bucket);
          builtin_[std::move(path)] = std::make_shared<const Record>(std::move(record));
        }
      } catch (const Error& error) {
        log_(LogLevel::warning, "records inside the library: {}", error.what());
      }
    }
  }
  return builtin_;
}

template <class Pass>
std::set<std::string> TuningRecordsOf<Pass>::paths() {
  std::set<std::string> paths;
  for (const StoreLayer& layer : options_.layers) {
    for (cache::StoredRecord& stored : layer.layer->list_records()) paths.insert(std::move(stored.path));
  }
  for (const auto& [path, record] : all_builtin()) paths.insert(path);
  for (const auto& [path, record] : known_) paths.insert(path);
  return paths;
}

template <class Pass>
auto TuningRecordsOf<Pass>::all(const DeviceIdentity& device) -> std::vector<Shared> {
  const std::string folder = folder_of(device);
  const std::lock_guard lock(mutex_);
  std::vector<Shared> records;
  for (const std::string& path : paths()) {
    if (!path.starts_with(folder)) continue;
    try {
      const std::size_t end = path.size() - cache::kRecordSuffix.size();
      const std::size_t dot = path.rfind('.', end - 1);  // a problem may have dots, a bucket has none
      const Problem problem = Pass::parse_problem(std::string_view(path).substr(folder.size(), dot - folder.size()));
      const ShapeBucket bucket = parse_shape_bucket(std::string_view(path).substr(dot + 1, end - dot - 1));
      if (Shared record = find_locked({device, problem, bucket})) records.push_back(std::move(record));
    } catch (const Error&) {  // a file of others
    }
  }
  return records;
}

template <class Pass>
auto TuningRecordsOf<Pass>::chosen(const Problem& problem, const Architecture& architecture) -> std::vector<Variant> {
  const std::string file = to_string(tuning_class(problem)) + '.';
  const std::lock_guard lock(mutex_);
  std::vector<Variant> variants;
  for (const std::string& path : paths()) {
    if (!cache::parse_record_path(path)->file.starts_with(file)) continue;
    const Shared record = find_of_any_device(path);
    if (!record || record->device.architecture != architecture.name) continue;
    const bool is_new = std::find(variants.begin(), variants.end(), record->chosen) == variants.end();
    if (is_new && Pass::why_illegal(problem, record->chosen, architecture).empty()) variants.push_back(record->chosen);
  }
  return variants;
}

// Not to be used by calls here, so what is wrong with it is of no interest.
template <class Pass>
auto TuningRecordsOf<Pass>::find_of_any_device(const std::string& path) -> Shared {
  if (const auto known = known_.find(path); known != known_.end() && known->second) return known->second;
  for (const StoreLayer& layer : options_.layers) {
    const cache::RecordLookup lookup = layer.layer->read_record(path);
    try {
      if (!lookup.bytes) continue;
      Record record = Pass::parse_record(*lookup.bytes);
      if (record_path(record.device, record.problem, record.bucket) == path)
        return std::make_shared<const Record>(std::move(record));
    } catch (const Error&) {
    }
  }
  const auto builtin = all_builtin().find(path);
  return builtin == all_builtin().end() ? nullptr : builtin->second;
}

template <class Pass>
std::string TuningRecordsOf<Pass>::keep(Record record) {
  const std::string path = record_path(record.device, record.problem, record.bucket);
  std::string problem;
  const auto file = options_.user ? options_.user->store_record(path, to_json(record), &problem) : std::nullopt;
  const std::lock_guard lock(mutex_);
  known_[path] = std::make_shared<const Record>(std::move(record));
  if (options_.user && !file && !std::exchange(warned_of_writes_, true)) {
    log_(LogLevel::warning, "{}: could not be stored: {}; records that cannot are kept in memory only", path, problem);
  }
  return file.value_or("");
}

template <class Pass>
void TuningRecordsOf<Pass>::use_only(const DeviceIdentity& device, const std::vector<Record>& records) {
  const std::lock_guard lock(mutex_);
  given_.insert(slug(device));
  std::erase_if(known_, [folder = folder_of(device)](const auto& known) { return known.first.starts_with(folder); });
  for (const Record& record : records) {
    if (!(record.device == device)) continue;
    const Wanted wanted(device, record.problem, record.bucket);
    try {
      wanted.require(record);
      known_[wanted.path] = std::make_shared<const Record>(record);
    } catch (const Error& error) {
      log_(LogLevel::warning, "{}, as given: counts as no record: {}", wanted.path, error.what());
    }
  }
}

template <class Pass>
bool TuningRecordsOf<Pass>::uses_only_given(const DeviceIdentity& device) const {
  const std::lock_guard lock(mutex_);
  return given_.count(slug(device)) != 0;
}

template <class Pass>
std::optional<cache::EntryLock> TuningRecordsOf<Pass>::lock(const DeviceIdentity& device, const Problem& problem,
                                                            const ShapeBucket& bucket) {
  if (!options_.user) return std::nullopt;
  const std::string path = record_path(device, problem, bucket);
  return options_.user->lock({.name = path, .inputs = cache::digest_of(path), .compiler = {}});
}

template <class Pass>
std::uint64_t TuningRecordsOf<Pass>::damaged() const {
  const std::lock_guard lock(mutex_);
  return damaged_;
}

template class TuningRecordsOf<ForwardPass>;
template class TuningRecordsOf<BackwardPass>;

}  // namespace flashjit::runtime
