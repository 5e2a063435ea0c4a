// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/private_stream.h"

namespace flashjit::runtime {

PrivateStream::PrivateStream(const Driver& driver, const Device& device)
    : driver_(driver), device_(device), relaxed_(driver), context_(driver, device.info.ordinal) {
  driver_.check(driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

PrivateStream::~PrivateStream() {
  driver_.cuStreamSynchronize(stream_);
  driver_.cuStreamDestroy(stream_);
  // The pool keeps what is freed, which is right for outputs of calls and too much after large tensors.
  if (device_.pool) driver_.cuMemPoolTrimTo(device_.pool, 0);
}

}  // namespace flashjit::runtime
