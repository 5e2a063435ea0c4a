// SPDX-License-Identifier: Apache-2.0
// The names of entries in directories and bundles: <two digits>/<name>.<inputs>.<compiler>.fjc
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cache/layer.h"

namespace flashjit::cache {

inline constexpr std::string_view kEntrySuffix = ".fjc";

// Whether name and compiler are of the characters that file names may have, and neither is empty.
bool is_valid(const Key& key);

std::string shard_of(const Key& key);  // the first two digits of the inputs
std::string stem_of(const Key& key);   // <name>.<inputs>. with the dot: what the files of these inputs begin with
std::string file_of(const Key& key);   // <name>.<inputs>.<compiler>.fjc
std::string path_of(const Key& key);   // <shard>/<file>

// Whether a directory of this name holds entries: two digits of a digest.
bool is_shard_name(std::string_view name);

// The key that a file name (without the shard) stands for; nothing when it is no entry's name.
std::optional<Key> parse_file_name(std::string_view file);

// The entry with the two facts that repeat its name, inputs and compiler, as it is stored.
Entry with_key(Entry entry, const Key& key);
// Decodes, and compares these facts with the key.
std::optional<Entry> decode_for(const Key& key, std::string_view bytes);

}  // namespace flashjit::cache
