// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA driver: streams are queues of work, which goes on when somebody asks how far they have come.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

struct CUstream_st {};
struct CUevent_st {
  bool passed = true;
};

namespace {

constexpr int kSuccess = 0, kNotReady = 600, kCaptureUnsupported = 900;
constexpr int kGlobal = 0, kRelaxed = 2;  // of CUstreamCaptureMode

constexpr int kGreatestPriority = -5;

std::atomic<bool> is_capturing = false;
std::atomic<int> urgent_streams = 0;
thread_local int capture_mode = kGlobal;

std::recursive_mutex mutex;
std::deque<CUevent_st> events;  // all that were made: streams may still wait for one that was destroyed
std::map<CUstream_st*, std::deque<std::function<bool()>>> streams;

// Does what can be done, of all streams until none goes on.
void advance() {
  for (bool is_moving = true; is_moving;) {
    is_moving = false;
    for (auto& [stream, work] : streams)
      while (!work.empty() && work.front()()) work.pop_front(), is_moving = true;
  }
}

}  // namespace

extern "C" {

void stand_in_enqueue(void* stream, std::function<bool()>* work) {
  const std::lock_guard lock(mutex);
  streams[static_cast<CUstream_st*>(stream)].push_back(*work);
}

void stand_in_capture(bool begins) { is_capturing = begins; }
int stand_in_urgent_streams() { return urgent_streams; }

int cuInit(unsigned) { return kSuccess; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(device + 1));
  return kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxPushCurrent_v2(void*) { return kSuccess; }
int cuCtxPopCurrent_v2(void**) { return kSuccess; }
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = kGreatestPriority, kSuccess;
}
int cuStreamCreateWithPriority(CUstream_st** stream, unsigned, int priority) {
  if (priority == kGreatestPriority) ++urgent_streams;
  return *stream = new CUstream_st, kSuccess;
}
int cuStreamDestroy_v2(CUstream_st* stream) {
  const std::lock_guard lock(mutex);
  streams.erase(stream);
  delete stream;
  return kSuccess;
}
int cuStreamSynchronize(CUstream_st* stream) {
  while (true) {
    {
      const std::lock_guard lock(mutex);
      advance();
      if (streams[stream].empty()) return kSuccess;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}
int cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event, unsigned) {
  const std::lock_guard lock(mutex);
  streams[stream].push_back([event] { return event->passed; });
  return kSuccess;
}
int cuMemcpyDtoDAsync_v2(std::uintptr_t, std::uintptr_t, std::size_t, CUstream_st*) { return kSuccess; }
int cuMemsetD8Async(std::uintptr_t, unsigned char, std::size_t, CUstream_st*) { return kSuccess; }
int cuStreamIsCapturing(CUstream_st*, int* status) { return *status = 0, kSuccess; }
int cuEventCreate(CUevent_st** event, unsigned) {
  const std::lock_guard lock(mutex);
  return *event = &events.emplace_back(), kSuccess;
}
int cuEventDestroy_v2(CUevent_st*) { return kSuccess; }
int cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  const std::lock_guard lock(mutex);
  event->passed = false;
  streams[stream].push_back([event] { return event->passed = true; });
  return kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int* mode) { return std::swap(capture_mode, *mode), kSuccess; }
int cuEventQuery(CUevent_st* event) {
  if (is_capturing && capture_mode != kRelaxed) return kCaptureUnsupported;
  const std::lock_guard lock(mutex);
  advance();
  return event->passed ? kSuccess : kNotReady;
}
int cuGetErrorName(int, const char** name) { return *name = "an error of the stand-in", kSuccess; }
}
