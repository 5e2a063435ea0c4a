// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashjit/engine.h"
#include "flashjit/tuning.h"

namespace flashjit::runtime {

// Of a device as the driver describes it. Sizes are rounded, because drivers reserve a little more or less of them.
DeviceIdentity identify(const DeviceInfo& info);

}  // namespace flashjit::runtime
