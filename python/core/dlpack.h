/* SPDX-License-Identifier: Apache-2.0 */
/* What DLPack has had since versions 1.0 and 1.2 and the header of many distributions (0.6) has not: tensors with a
   version, and the table of C functions by which a library's Python arrays are read and made without Python code. The
   names are ours, so that newer headers do not clash. */
#ifndef FLASHJIT_PYTHON_CORE_DLPACK_H
#define FLASHJIT_PYTHON_CORE_DLPACK_H

#include <dlpack/dlpack.h>
#include <stdint.h>

enum { kDlpackMajor = 1 };                /* another major version has another layout */
enum { kManagedTensorReadOnly = 1 << 0 }; /* of ManagedTensor.flags */

typedef struct DlpackVersion {
  uint32_t major, minor;
} DlpackVersion;

/* DLManagedTensorVersioned: a tensor with an owner. */
typedef struct ManagedTensor {
  DlpackVersion version;
  void* owner;
  void (*deleter)(struct ManagedTensor* self);
  uint64_t flags;
  DLTensor tensor;
} ManagedTensor;

/* DLPackExchangeAPI, which the capsule type.__dlpack_c_exchange_api__ points to. Functions return 0 or fail with a
   Python exception set; array stands for a PyObject*. */
typedef struct ExchangeApi {
  DlpackVersion version;
  const struct ExchangeApi* previous; /* of an older major version; NULL: there is none */
  int (*allocate)(DLTensor* prototype, ManagedTensor** made, void* context,
                  void (*fail)(void* context, const char* kind, const char* message));
  int (*export_array)(void* array, ManagedTensor** made);
  int (*import_array)(ManagedTensor* taken, void** array);
  int (*view_array)(void* array, DLTensor* view); /* may be NULL; the view lives as long as the array */
  int (*current_stream)(DLDeviceType device_type, int32_t device_id, void** stream);
} ExchangeApi;

#endif
