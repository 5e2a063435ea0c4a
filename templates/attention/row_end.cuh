// SPDX-License-Identifier: Apache-2.0
// The sum of a row's exponentials, once all of its keys are in it, and the slot of what is added to it then.
//
// A part in this slot adds one term to the sum of each row, as if there were one more key, of no value. Its contract:
//   explicit Part(const Arguments&)  the launch's arguments, of which a part reads the member of its own
//   float term(PlaceOfRow place)     the term's binary logarithm; -infinity: none. place() gives the row's RowPlace
#pragma once

#include "attention/row_place.cuh"
#include "attention/softmax.cuh"
#include "ptx/convert.cuh"
#include "types.cuh"

// What a call is told of a row that ends. Where keys are split it is the same, bit by bit, whether the row's are or
// not.
template <bool kSplit, class End, class Softmax>
__device__ __forceinline__ float told_lse(const End& end, const Softmax& softmax, int m, int h) {
  return kSplit ? end.log2_sum_exp(softmax, m, h).natural() : end.log_sum_exp(softmax, m, h);
}

// At most one part.
template <class... Parts>
struct Additions;

template <>
struct Additions<> {
  static constexpr bool kAny = false;

  template <class Arguments>
  __device__ __forceinline__ explicit Additions(const Arguments&) {}
};

template <class Part>
struct Additions<Part> : Part {
  static constexpr bool kAny = true;

  using Part::Part;
};

// Of a row.
template <bool kAdds>
struct RowEnd {
  float total;  // of the exponentials, relative to the softmax's reference

  template <class Softmax>
  __device__ __forceinline__ float log_sum_exp(const Softmax& softmax, int m, int h) const {
    return softmax.log_sum_exp(m, h, total);
  }
  template <class Softmax>
  __device__ __forceinline__ Log2 log2_sum_exp(const Softmax& softmax, int m, int h) const {
    return softmax.log2_sum_exp(m, h, total);
  }
};

// The larger one of the softmax's reference and the added term is what the total is relative to.
template <>
struct RowEnd<true> {
  float total;
  float kept;  // what the output has to be multiplied by for it
  float term;
  bool leads;  // the term

  template <class Softmax>
  __device__ __forceinline__ float log_sum_exp(const Softmax& softmax, int m, int h) const {
    return leads ? (term + ptx::lg2(total)) * kLn2 : softmax.log_sum_exp(m, h, total);
  }
  template <class Softmax>
  __device__ __forceinline__ Log2 log2_sum_exp(const Softmax& softmax, int m, int h) const {
    return leads ? Log2{term, ptx::lg2(total)} : softmax.log2_sum_exp(m, h, total);
  }
};

// Row (m, h) of a softmax. adds: of several that a row's keys are split among, one does.
template <class Additions, class Softmax, class PlaceOfRow>
__device__ __forceinline__ RowEnd<Additions::kAny> end_row(const Additions& additions, const Softmax& softmax, int m,
                                                           int h, PlaceOfRow place, bool adds) {
  RowEnd<Additions::kAny> end;
  end.total = softmax.total(m, h);
  if constexpr (Additions::kAny) {
    end.term = adds ? additions.term(place) : -infinity();
    const float above = softmax.reference_above(end.term, m, h);
    const bool saw_none = end.total == 0.0f;   // then the reference says nothing
    end.leads = saw_none || !(above >= 0.0f);  // NaN, too
    end.kept = saw_none ? 0.0f : end.leads ? ptx::ex2(above) : 1.0f;
    end.total = __fmaf_rn(end.total, end.kept, end.leads ? 1.0f : ptx::ex2(-above));
  }
  return end;
}
