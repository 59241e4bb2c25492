// A communicator over the connections of an Endpoint.
#pragma once

#include <memory>
#include <string>

#include "shiplap/comm/monitored_communicator_internal.h"
#include "shiplap/comm/sockets/endpoint_internal.h"

namespace shiplap::comm {

class SocketCommunicator final : public MonitoredCommunicator {
 public:
  SocketCommunicator(std::shared_ptr<Endpoint> endpoint, Members members, std::string name);
  ~SocketCommunicator() override;

  // Longer messages use the rendezvous protocol.
  [[nodiscard]] std::size_t eager_limit(int peer) const override;
  [[nodiscard]] std::size_t pack_below(int peer) const override;

 protected:
  [[nodiscard]] double now() const override { return seconds_now(); }
  Request start_send(std::span<const std::byte> data, int to, int tag) override;
  Request start_receive(std::span<std::byte> data, int from, int tag) override;
  [[nodiscard]] bool replies_when_posted() const override { return true; }
  std::unique_ptr<Communicator> do_split(int colour, int key, const std::string& name) override;

 private:
  class SocketRequest;
  class SendRequest;
  class ReceiveRequest;

  std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace shiplap::comm
