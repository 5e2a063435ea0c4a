// SPDX-License-Identifier: Apache-2.0
// The tuning records that an engine knows: its memory, then the layers of the cache, then those inside the library.
// Whether they are used at all is the caller's to decide.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry_lock.h"
#include "flashjit/error.h"
#include "flashjit/tuning.h"
#include "runtime/kernels/cache_layers.h"
#include "runtime/support/logger.h"
#include "runtime/tuning/tuning_pass.h"
#include "runtime/tuning/tuning_summary.h"

namespace flashjit::runtime {

struct TuningRecordsOptions {
  std::shared_ptr<cache::UserDirectoryLayer> user;  // records are written here; null: nowhere
  std::vector<StoreLayer> layers;                   // all that are read, the user's too, in order
  std::vector<std::string_view> builtin;            // summaries, as summarize() writes them
};

// The summaries inside the library: generated from runtime/tuning/records/*.json.
std::vector<std::string_view> builtin_records();

// Those of one pass. Thread-safe, and safe with other processes on the same directories. A problem is asked for by
// itself, and has the records of its class.
template <class Pass>
class TuningRecordsOf {
 public:
  using Problem = typename Pass::Problem;
  using Variant = typename Pass::Variant;
  using Record = typename Pass::Record;
  using Shared = std::shared_ptr<const Record>;

  TuningRecordsOf(TuningRecordsOptions options, const Logger& log);

  // Null when there is none that holds here. What was found stays, and so does that nothing was: the answer does not
  // change while the engine lives, unless keep() or find_again() change it. One that is damaged, of a newer format, of
  // another device, problem or bucket than its name says, or whose chosen variant is not legal here, counts as none,
  // with a warning.
  Shared find(const DeviceIdentity& device, const Problem& problem, const ShapeBucket& bucket);
  // Looks into the layers again: for what another process may have kept meanwhile.
  Shared find_again(const DeviceIdentity& device, const Problem& problem, const ShapeBucket& bucket);
  // All that find() would give for this device, by name of problem and bucket.
  std::vector<Shared> all(const DeviceIdentity& device);

  // What they choose for the problem on all devices of this architecture, each once. Legal, all of them.
  std::vector<Variant> chosen(const Problem& problem, const Architecture& architecture);

  // From now on find() gives this one. Writes it, too; a record that cannot be written is kept in memory, with one
  // warning for all of them. The file, or empty.
  std::string keep(Record record);

  // For whoever tunes, so that other processes wait for the record instead; nothing when there is no user's directory.
  std::optional<cache::EntryLock> lock(const DeviceIdentity& device, const Problem& problem, const ShapeBucket& bucket);

  // From now on these are all that there are for the device, whatever the layers have, and others keep meanwhile. Those
  // of other devices are left out, and those that are not legal here, with a warning.
  void use_only(const DeviceIdentity& device, const std::vector<Record>& records);
  bool uses_only_given(const DeviceIdentity& device) const;

  std::uint64_t damaged() const;  // files that counted as none

 private:
  struct Wanted;
  Shared find_locked(const Wanted& wanted);
  Shared find_in_layers(const Wanted& wanted);
  Shared find_in(const StoreLayer& layer, const Wanted& wanted);
  Shared find_builtin(const Wanted& wanted);
  Shared find_of_any_device(const std::string& path);
  Shared refuse(const StoreLayer& layer, const Wanted& wanted, const std::string& location, const Error& error);
  const std::map<std::string, Shared>& all_builtin();
  // Of all layers, of the library and of memory.
  std::set<std::string> paths();

  const TuningRecordsOptions options_;
  const Logger& log_;

  mutable std::mutex mutex_;               // of what follows, and held while files are read: each is read once
  std::map<std::string, Shared> known_;    // by path; null: there is none
  std::vector<TuningSummary> summaries_;   // inside the library
  std::map<std::string, Shared> builtin_;  // by path: all of them, when they were asked for
  bool builtin_read_ = false;
  std::set<std::string> given_;    // devices, by slug, whose records are those of use_only()
  std::set<std::string> refused_;  // locations that a warning named
  std::uint64_t damaged_ = 0;
  bool warned_of_writes_ = false;
};
using TuningRecords = TuningRecordsOf<ForwardPass>;

}  // namespace flashjit::runtime
