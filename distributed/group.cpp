// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "distributed/reject.h"
#include "distributed/workspace.h"

namespace flashjit::distributed {

Group::Group(std::unique_ptr<Transport> transport) {
  if (!transport) reject("transport: must be given, was null");
  impl_ = std::make_unique<Impl>(Impl{std::move(transport), {}});
}
Group::~Group() = default;
Group::Group(Group&& other) noexcept = default;
Group& Group::operator=(Group&& other) noexcept = default;

int Group::rank() const noexcept { return impl_->transport->rank(); }
int Group::size() const noexcept { return impl_->transport->size(); }
Transport& Group::transport() const noexcept { return *impl_->transport; }
void Group::wait() { impl_->transport->wait(); }

}  // namespace flashjit::distributed
