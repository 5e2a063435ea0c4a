// SPDX-License-Identifier: Apache-2.0
// What tests ask of the libraries that stand in for NCCL and the driver, which both are of one process.
#pragma once

#include <functional>

// Of libnccl.so.2.
extern "C" {
void stand_in_reset();
// From now on this rank's functions never come to an end, as of a peer that is gone.
void stand_in_lose_rank(int rank);
int stand_in_aborts();       // communicators that were aborted
int stand_in_destroyed();    // and those that were destroyed
int stand_in_open_groups();  // groups that were begun and not ended
}

// Of libcuda.so.1.
extern "C" {
// Whether somebody captures a graph, of other streams than those that tests use.
void stand_in_capture(bool begins);
int stand_in_urgent_streams();  // that were made with the greatest priority
// Work of a stream: it is asked until it says that it is done.
void stand_in_enqueue(void* stream, std::function<bool()>* work);
}
