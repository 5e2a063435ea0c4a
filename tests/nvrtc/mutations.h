// SPDX-License-Identifier: Apache-2.0
// All faults that test_emulator_mutations.cpp plants, by what they are in.
#pragma once

#include "tests/nvrtc/mutations/decode.h"
#include "tests/nvrtc/mutations/dropout.h"
#include "tests/nvrtc/mutations/functions.h"
#include "tests/nvrtc/mutations/large_heads.h"
#include "tests/nvrtc/mutations/large_heads_mma.h"
#include "tests/nvrtc/mutations/mma.h"
#include "tests/nvrtc/mutations/pipeline.h"
#include "tests/nvrtc/mutations/ragged.h"
#include "tests/nvrtc/mutations/scores.h"
#include "tests/nvrtc/mutations/sinks_and_chunks.h"
#include "tests/nvrtc/mutations/splits.h"
#include "tests/nvrtc/mutations/stored.h"
#include "tests/nvrtc/mutations/tiles.h"
#include "tests/nvrtc/mutations/warpgroups.h"
#include "tests/nvrtc/mutations/window.h"
#include "tests/nvrtc/mutations/without_tensor_cores.h"

namespace flashjit::tests {

inline const std::vector<Mutation>* const kAllMutations[] = {
    &kRingFaults,   &kWaitFaults,      &kCopyFaults,     &kWgmmaFaults, &kFenceFaults,  &kRoleFaults,
    &kOutputFaults, &kWindowFaults,    &kScoreFaults,    &kSinkFaults,  &kChunkFaults,  &kMmaFaults,
    &kTextFaults,   &kDropoutFaults,   &kRaggedFaults,   &kSplitFaults, &kDecodeFaults, &kStoredFaults,
    &kFmaFaults,    &kLargeHeadFaults, &kLargeMmaFaults, &kLatentFaults};

}  // namespace flashjit::tests
