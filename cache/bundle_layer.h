// SPDX-License-Identifier: Apache-2.0
// The entries and records of a bundle: a file, or bytes that are linked into the application.
#pragma once

#include <memory>
#include <string>

#include "cache/bundle.h"
#include "cache/layer.h"

namespace flashjit::cache {

class BundleLayer : public Layer {
 public:
  // Opens it; a bundle that cannot be opened is an empty layer with a problem().
  explicit BundleLayer(const std::filesystem::path& file, FileSystem& files = system_calls());
  // The bytes stay the caller's and must outlive the layer.
  BundleLayer(std::string_view bytes, const std::string& name);

  Lookup find(const Key& key) override;
  std::vector<StoredEntry> list() override;
  RecordLookup read_record(const std::string& path) override;
  std::vector<StoredRecord> list_records() override;
  std::string location() const override { return location_; }
  std::string problem() override { return problem_; }

 private:
  const std::string location_;
  std::string problem_;
  std::shared_ptr<const Bundle> bundle_;  // null when there is a problem
};

}  // namespace flashjit::cache
