// SPDX-License-Identifier: Apache-2.0
// The file CACHEDIR.TAG, which says that a directory is the cache's, and what is so where there is none.
#pragma once

#include <string>

#include "cache/directory.h"

namespace flashjit::cache {

// Why the open directory is not the cache's, in one line; empty when it is. It is when it has the tag, when something
// in it is the cache's own (releases before the tag), or when there is nothing in it at all.
std::string why_not_ours(const Directory& directory);

// The same; and one that is the cache's gets the tag.
std::string claim(const Directory& directory);

}  // namespace flashjit::cache
