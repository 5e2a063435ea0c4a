// SPDX-License-Identifier: Apache-2.0
// The entry of libFuzzer. FLASHJIT_FUZZED names the function of properties.h that this program calls.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  flashjit::fuzz::FLASHJIT_FUZZED({reinterpret_cast<const char*>(data), size});
  return 0;
}
