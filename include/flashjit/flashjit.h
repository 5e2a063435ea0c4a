// SPDX-License-Identifier: Apache-2.0
// Everything: #include <flashjit/flashjit.h>.
#pragma once

#include "flashjit/append.h"
#include "flashjit/attention.h"
#include "flashjit/backward.h"
#include "flashjit/batch_plan.h"
#include "flashjit/cache.h"
#include "flashjit/engine.h"
#include "flashjit/error.h"
#include "flashjit/merge.h"
#include "flashjit/problem.h"
#include "flashjit/quantize.h"
#include "flashjit/reference.h"
#include "flashjit/sum.h"
#include "flashjit/tensor.h"
#include "flashjit/version.h"
