#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <list>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/sockets/endpoint_internal.h"
#include "shiplap/comm/sockets/join_internal.h"
#include "shiplap/comm/sockets/protocol_internal.h"

namespace shiplap::comm {
namespace {

using Verdict = Hello::Verdict;

// Who connects and says nothing is no rank.
constexpr double kHelloWithin = 10;
// After the deadline: to see who is there all the same.
constexpr Seconds kLook{0.2};
// A rank that gives up says so before it ends its connections; the store may be slower.
constexpr Seconds kNoteWithin{0.5};
// Who may wait to be heard, besides the ranks.
constexpr int kStrangers = 64;
constexpr const char* kNoMessage = "it sent what is no message of Shiplap";

// A number that no other world has, and that nobody can guess.
std::uint64_t new_session() {
  std::uint64_t number = 0;
  const Nonce nonce = random_nonce();
  std::memcpy(&number, nonce.data(), sizeof number);
  return number;
}

std::span<const std::byte> said(std::span<const std::byte> hello) {
  return hello.first(Hello::kSaid);
}

std::uint64_t parse_session(const Seat& seat, const std::string& text) {
  std::uint64_t number = 0;
  const bool is_hex = text.size() == 16 && std::ranges::all_of(text, [&](char digit) {
                        const std::size_t value = std::string_view("0123456789abcdef").find(digit);
                        number = number * 16 + value;
                        return value != std::string_view::npos;
                      });
  if (!is_hex) {
    refuse_peer(seat, fmt::format("the rendezvous gives `{}` for the number of the world", text),
                "give every world a store, or a name, of its own");
  }
  return number;
}

// One connection for every other rank, and some for what a rank has besides.
Seat reserved(const Seat& seat) {
  constexpr int kBesides = 16;
  reserve_descriptors(seat.size + kStrangers + kBesides);
  return seat;
}

// One rank that comes together with the others.
class Joining {
 public:
  Joining(const Seat& seat, Rendezvous& rendezvous, const SocketOptions& options)
      : seat_(reserved(seat)),
        rendezvous_(rendezvous),
        options_(options),
        deadline_(seconds_now() + options.connect_within.value),
        listener_(listen_at(parse_address(options.address, "the address", Port::optional),
                            std::max(seat.size, 16))) {
    joined_.sockets.resize(at(seat.size));
    welcome_.resize(at(seat.size));
    welcome_[seat.rank] = true;
  }

  // Tells the others why this rank leaves, as far as they can be reached.
  void give_up(const GivenUp& given_up);

  Joined run() {
    publish();
    for (int rank = 0; rank < seat_.rank; ++rank) call(rank);
    while (!is_complete()) {
      const bool is_late = seconds_now() >= deadline_;
      wait_for_news();
      let_in();
      hear_strangers();
      hear_answers();
      if (is_late && !is_complete()) fail_late();
    }
    const std::string own = listener_.own_address().host;
    is_connected_ = true;
    agree();
    for (const Socket& socket : joined_.sockets) {
      if (socket.is_open() && socket.peer_address().host == own) ++joined_.here;
    }
    return std::move(joined_);
  }

 private:
  using HelloBytes = std::array<std::byte, Hello::kBytes>;
  // Somebody who has connected, and has not yet said or not yet proved who it is.
  struct Stranger {
    Socket socket;
    double since = 0;
    HelloBytes bytes{};
    std::size_t count = 0;
    int welcomed_as = -1;  // a rank that it has still to prove to be
    HelloBytes question{};
    HelloBytes answer{};
  };
  // What a rank that was called has answered so far.
  struct Answer {
    int rank = 0;
    HelloBytes question{};
    HelloBytes bytes{};
    std::size_t count = 0;
  };

  // As many as there are ranks, and some more.
  [[nodiscard]] std::size_t most_strangers() const { return at(seat_.size + kStrangers); }
  [[nodiscard]] bool is_complete() const {
    return std::ranges::all_of(welcome_, [](bool one) { return one; });
  }
  [[nodiscard]] Seconds left() const { return std::max(Seconds{deadline_ - seconds_now()}, kLook); }
  [[nodiscard]] std::string key(int rank) const {
    return fmt::format("{}/{}", options_.name, rank);
  }

  void publish();
  void call(int rank);
  void wait_for_news();
  void let_in();
  void hear_strangers();
  // True if it is to be heard further.
  bool hear(Stranger& stranger);
  // True if it is to be heard further: it has to prove what it said.
  bool judge(Stranger& stranger, const Hello& hello);
  void let_in_if_proved(Stranger& stranger, const Hello& hello);
  void tell_version(const Stranger& stranger);
  [[nodiscard]] Verdict verdict_on(const Hello& hello) const;
  void hear_answers();
  bool hear(Answer& answer);
  void take(const Answer& answer, const Hello& hello);
  void prove(const Answer& answer, const Hello& hello);
  // Nobody begins to work before all have come together: who does not answer then is not at work
  // either.
  void agree();
  void await_all_ready();
  void tell_rank(int rank, Verdict verdict);
  // The connection of a rank ended before all had come together.
  [[noreturn]] void fail_lost(
      int rank, const char* why = "it ended its connection while the ranks came together");
  void turn_away(std::string who) {
    ++turned_away_;
    last_turned_away_ = std::move(who);
  }
  [[noreturn]] void fail_late();

  Seat seat_;
  Rendezvous& rendezvous_;
  const SocketOptions& options_;
  double deadline_;
  Socket listener_;
  std::uint64_t session_ = 0;
  Secret secret_;
  Joined joined_;
  std::vector<bool> welcome_;  // by rank
  bool is_connected_ = false;  // to every other rank
  std::list<Stranger> strangers_;
  std::list<Answer> answers_;
  int turned_away_ = 0;
  std::string last_turned_away_;
};

void Joining::publish() {
  const Address own = listener_.own_address();
  const std::string session_key = options_.name + "/session";
  if (seat_.rank == 0) {
    rendezvous_.put(session_key, fmt::format("{:016x}", new_session()));
  }
  rendezvous_.put(key(seat_.rank), to_string(own));
  const auto session = rendezvous_.get(session_key, left());
  if (!session) fail_late();
  session_ = parse_session(seat_, *session);
  secret_ = Secret(options_.secret + *session);
}

void Joining::call(int rank) {
  const auto text = rendezvous_.get(key(rank), left());
  if (!text) fail_late();
  const Address address =
      parse_address(*text, fmt::format("what the rendezvous says of rank {}", rank), Port::needed);
  Socket socket = connect_to(address, deadline_);
  const HelloBytes question = encode(Hello{.from = seat_.rank,
                                           .to = rank,
                                           .size = seat_.size,
                                           .session = session_,
                                           .nonce = random_nonce()});
  if (!socket.is_open() || !send_all(socket, question, deadline_)) {
    fail_to_meet(seat_,
                 fmt::format("rank {} was not reached at {} within {}", rank, to_string(address),
                             to_string(options_.connect_within)),
                 {rank}, "its address is known, but nothing listens there");
  }
  joined_.sockets[rank] = std::move(socket);
  answers_.push_back({.rank = rank, .question = question});
}

void Joining::wait_for_news() {
  std::vector<pollfd> all{{.fd = listener_.descriptor(), .events = POLLIN, .revents = 0}};
  for (const Stranger& one : strangers_) {
    all.push_back({.fd = one.socket.descriptor(), .events = POLLIN, .revents = 0});
  }
  for (const Answer& one : answers_) {
    const int descriptor = joined_.sockets[one.rank].descriptor();
    all.push_back({.fd = descriptor, .events = POLLIN, .revents = 0});
  }
  // Also to see that a stranger has been silent for too long.
  const double seconds = std::clamp(deadline_ - seconds_now(), 0.0, 1.0);
  (void)poll(all.data(), all.size(), static_cast<int>(seconds * 1e3));
}

void Joining::let_in() {
  for (Socket socket = accept_from(listener_); socket.is_open(); socket = accept_from(listener_)) {
    if (strangers_.size() >= most_strangers()) {
      std::erase_if(strangers_, [](const Stranger& one) { return one.welcomed_as < 0; });
    }
    strangers_.push_back({.socket = std::move(socket), .since = seconds_now()});
  }
}

void Joining::hear_strangers() {
  for (auto one = strangers_.begin(); one != strangers_.end();) {
    one = hear(*one) ? std::next(one) : strangers_.erase(one);
  }
}

bool Joining::hear(Stranger& stranger) {
  const auto moved = stranger.socket.receive(std::span(stranger.bytes).subspan(stranger.count));
  stranger.count += moved.bytes;
  const std::string where = to_string(stranger.socket.peer_address());
  if (moved.would_wait) {
    // A rank that was welcomed hears that when it has called all before it, some of which may come
    // late.
    if (stranger.welcomed_as >= 0 || seconds_now() < stranger.since + kHelloWithin) return true;
    turn_away(fmt::format("one from {}, which said nothing", where));
    return false;
  }
  if (moved.bytes == 0) return false;  // it went by itself
  if (stranger.count < Hello::kOfAllVersions) return true;
  const auto version = version_of_hello(std::span(stranger.bytes).first<Hello::kOfAllVersions>());
  if (version && *version != kSocketsVersion) {
    tell_version(stranger);
    turn_away(fmt::format("a rank of version {}", *version));
    return false;
  }
  if (version && stranger.count < Hello::kBytes) return true;
  const auto hello = version ? decode_hello(stranger.bytes) : std::nullopt;
  const Verdict expected = stranger.welcomed_as < 0 ? Verdict::question : Verdict::proof;
  if (!hello || hello->verdict != expected) {
    turn_away(fmt::format("one from {}, which is no rank of Shiplap", where));
    return false;
  }
  if (expected == Verdict::question) return judge(stranger, *hello);
  let_in_if_proved(stranger, *hello);
  return false;
}

void Joining::tell_version(const Stranger& stranger) {
  (void)send_all(stranger.socket, encode(Hello{.verdict = Verdict::other_version}), deadline_);
}

Verdict Joining::verdict_on(const Hello& hello) const {
  if (hello.session != session_) return Verdict::other_job;
  if (hello.size != seat_.size) return Verdict::other_size;
  if (hello.to != seat_.rank || hello.from <= seat_.rank || hello.from >= seat_.size) {
    return Verdict::wrong_place;
  }
  return welcome_[hello.from] ? Verdict::taken : Verdict::welcome;
}

bool Joining::judge(Stranger& stranger, const Hello& hello) {
  const Verdict verdict = verdict_on(hello);
  Hello answer{.verdict = verdict,
               .from = seat_.rank,
               .to = hello.from,
               .size = seat_.size,
               .session = verdict == Verdict::welcome ? session_ : 0,
               .nonce = random_nonce()};
  if (verdict == Verdict::welcome) {
    answer.proof = secret_.prove("answer", said(stranger.bytes), said(encode(answer)));
  }
  stranger.question = stranger.bytes;
  stranger.answer = encode(answer);
  stranger.count = 0;
  stranger.welcomed_as = hello.from;
  const bool sent = send_all(stranger.socket, stranger.answer, deadline_);
  if (verdict == Verdict::welcome) return sent;
  turn_away(fmt::format("rank {} of {}", hello.from, hello.size));
  return false;
}

void Joining::let_in_if_proved(Stranger& stranger, const Hello& hello) {
  const int rank = stranger.welcomed_as;
  const Digest due = secret_.prove("proof", said(stranger.question), said(stranger.answer));
  if (!equal_in_constant_time(hello.proof, due)) {
    return turn_away(fmt::format("one from {}, which does not know the secret of this job",
                                 to_string(stranger.socket.peer_address())));
  }
  if (welcome_[rank]) return turn_away(fmt::format("a second rank {}", rank));
  joined_.sockets[rank] = std::move(stranger.socket);
  welcome_[rank] = true;
}

void Joining::hear_answers() {
  for (auto one = answers_.begin(); one != answers_.end();) {
    one = hear(*one) ? std::next(one) : answers_.erase(one);
  }
}

bool Joining::hear(Answer& answer) {
  const Socket& socket = joined_.sockets[answer.rank];
  const auto moved = socket.receive(std::span(answer.bytes).subspan(answer.count));
  if (moved.would_wait) return true;
  if (moved.bytes == 0) {
    fail_lost(answer.rank);
  }
  answer.count += moved.bytes;
  if (answer.count < Hello::kOfAllVersions) return true;
  const auto version = version_of_hello(std::span(answer.bytes).first<Hello::kOfAllVersions>());
  if (version == kSocketsVersion && answer.count < Hello::kBytes) return true;
  const auto hello = version ? decode_hello(answer.bytes) : std::nullopt;
  if (!hello || hello->verdict == Verdict::question || hello->verdict >= Verdict::proof) {
    refuse_peer(seat_,
                fmt::format("what listens at {} is not rank {} of Shiplap",
                            to_string(socket.peer_address()), answer.rank),
                "is the address in the rendezvous of this job?");
  }
  take(answer, *hello);
  return false;
}

void Joining::prove(const Answer& answer, const Hello& hello) {
  const Digest due = secret_.prove("answer", said(answer.question), said(answer.bytes));
  if (!equal_in_constant_time(hello.proof, due)) {
    refuse_peer(seat_,
                fmt::format("what listens where rank {} should be does not know the secret of this "
                            "job",
                            answer.rank),
                "give all ranks the same SHIPLAP_SECRET");
  }
  const Hello proof{.verdict = Verdict::proof,
                    .from = seat_.rank,
                    .to = answer.rank,
                    .size = seat_.size,
                    .proof = secret_.prove("proof", said(answer.question), said(answer.bytes))};
  if (!send_all(joined_.sockets[answer.rank], encode(proof), deadline_)) {
    fail_lost(answer.rank);
  }
  welcome_[answer.rank] = true;
}

void Joining::take(const Answer& answer, const Hello& hello) {
  const auto refuse = [&](const std::string& what, const char* help) {
    refuse_peer(seat_, what, help);
  };
  switch (hello.verdict) {
    case Verdict::question:
    case Verdict::proof:
    case Verdict::ready:
    case Verdict::go:
    case Verdict::welcome:
      prove(answer, hello);
      return;
    case Verdict::other_version:
      refuse(fmt::format("rank {} speaks version {} of the protocol, this rank {}", answer.rank,
                         hello.version, kSocketsVersion),
             "use the same version of Shiplap for all ranks");
      return;
    case Verdict::other_size:
      refuse(fmt::format("rank {} is one of {} ranks, this one of {}", answer.rank, hello.size,
                         seat_.size),
             "give all ranks the same size");
      return;
    case Verdict::other_job:
      refuse(fmt::format("rank {} belongs to another job", answer.rank),
             "give every world a store, or a name, of its own");
      return;
    case Verdict::taken:
      refuse(fmt::format("rank {} knows another rank {} already", answer.rank, seat_.rank),
             "give every rank a number of its own");
      return;
    case Verdict::wrong_place:
      refuse(
          fmt::format("what listens where rank {} should be is rank {}", answer.rank, hello.from),
          "compare the addresses of the ranks");
      return;
  }
}

void Joining::agree() {
  if (seat_.rank == 0) {
    await_all_ready();
    for (int rank = 1; rank < seat_.size; ++rank) tell_rank(rank, Verdict::go);
    return;
  }
  tell_rank(0, Verdict::ready);
  HelloBytes bytes{};
  if (!receive_all(joined_.sockets[0], bytes, deadline_)) {
    seconds_now() >= deadline_ ? fail_late() : fail_lost(0);
  }
  const auto hello = decode_hello(bytes);
  if (!hello || hello->verdict != Verdict::go) fail_lost(0, kNoMessage);
}

void Joining::tell_rank(int rank, Verdict verdict) {
  const Hello hello{.verdict = verdict, .from = seat_.rank, .to = rank, .size = seat_.size};
  if (!send_all(joined_.sockets[rank], encode(hello), deadline_)) fail_lost(rank);
}

void Joining::await_all_ready() {
  listener_.close();  // all have come: who still does is none of them
  strangers_.clear();
  welcome_.assign(at(seat_.size), false);
  welcome_[0] = true;
  for (int rank = 1; rank < seat_.size; ++rank) answers_.push_back({.rank = rank});
  while (!answers_.empty()) {
    if (seconds_now() >= deadline_) fail_late();
    wait_for_news();
    std::erase_if(answers_, [&](Answer& answer) {
      const Socket& socket = joined_.sockets[answer.rank];
      const auto moved = socket.receive(std::span(answer.bytes).subspan(answer.count));
      if (moved.would_wait) return false;
      answer.count += moved.bytes;
      if (moved.bytes > 0 && answer.count < Hello::kBytes) return false;
      const auto hello = decode_hello(answer.bytes);
      if (moved.bytes == 0) fail_lost(answer.rank);
      if (!hello || hello->verdict != Verdict::ready) fail_lost(answer.rank, kNoMessage);
      welcome_[answer.rank] = true;
      return true;
    });
  }
}

void Joining::fail_lost(int rank, const char* why) {
  std::optional<std::string> note;
  // Where nobody can leave a word, nothing follows from its absence.
  bool is_known = true;
  try {
    note = rendezvous_.get(given_up_key(options_.name, rank), kNoteWithin);
    is_known = note || rendezvous_.get(options_.name + "/session", kLook);
  } catch (const Failure&) {
    throw;  // the store is ours, and says who failed
  } catch (const std::exception&) {
    is_known = true;  // it went with the rank that is lost
  }
  if (note) fail_given_up(seat_, rank, parse_given_up(*note));
  if (is_known) fail_to_meet_rank(seat_, rank, why);
  fail_to_meet(seat_, fmt::format("rank {} left", rank), {},
               fmt::format("{}; the rendezvous does not answer", why));
}

void Joining::give_up(const GivenUp& given_up) {
  const auto try_to = [](const auto& act) {
    try {
      act();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  (void)try_to(
      [&] { rendezvous_.put(given_up_key(options_.name, seat_.rank), to_text(given_up)); });
  (void)try_to([&] {
    for (int rank = 0; rank < seat_.size; ++rank) {
      if (!is_connected_ && !welcome_[rank]) joined_.sockets[rank].close();
    }
    Endpoint endpoint(seat_, std::move(joined_));
    endpoint.detector().abort_peers(given_up.culprit, given_up.why);
    const MutexLock lock(endpoint.mutex());
    endpoint.end_group(0, /*has_failed=*/true);
  });
}

void Joining::fail_late() {
  std::vector<int> missing;
  for (int rank = 0; rank < seat_.size; ++rank) {
    if (rank != seat_.rank && !rendezvous_.get(key(rank), kLook)) missing.push_back(rank);
  }
  for (int rank = 0; missing.empty() && rank < seat_.size; ++rank) {
    if (!welcome_[rank]) missing.push_back(rank);
  }
  fail_to_meet(seat_,
               fmt::format("{} ranks did not come together within {}", seat_.size,
                           to_string(options_.connect_within)),
               std::move(missing),
               turned_away_ == 0 ? ""
                                 : fmt::format("{} turned away, the last was {}", turned_away_,
                                               last_turned_away_));
}

}  // namespace

void fail_to_meet(const Seat& seat, std::string what, std::vector<int> missing, std::string why) {
  if (!missing.empty()) {
    why = fmt::format("not there: rank {}{}{}", fmt::join(missing, ", "), why.empty() ? "" : "; ",
                      why);
  }
  throw DeadlinePassed(Diagnostic{.code = "D301",
                                  .where = {.rank = seat.rank, .operation = "connect"},
                                  .what = std::move(what),
                                  .why = std::move(why)},
                       std::move(missing));
}

std::string given_up_key(const std::string& name, int rank) {
  return fmt::format("{}/gave-up/{}", name, rank);
}

std::string to_text(const GivenUp& given_up) {
  std::string why = given_up.why.substr(0, 200);
  std::ranges::replace_if(why, [](char letter) { return letter < ' ' || letter > '~'; }, ' ');
  return fmt::format("{} {}", given_up.culprit, why);
}

GivenUp parse_given_up(const std::string& text) {
  GivenUp given_up;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), given_up.culprit);
  const auto used = static_cast<std::size_t>(end - text.data());
  if (error == std::errc() && used < text.size()) given_up.why = text.substr(used + 1);
  return given_up;
}

void fail_given_up(const Seat& seat, int rank, const GivenUp& given_up) {
  const std::string why = fmt::format("rank {} gave up: {}", rank, given_up.why);
  const bool because_of_us = given_up.culprit == seat.rank;  // which knows of no fault
  if (given_up.culprit >= 0 && given_up.culprit < seat.size && !because_of_us) {
    fail_to_meet_rank(seat, given_up.culprit, why);
  }
  fail_to_meet(seat, fmt::format("{} ranks did not come together", seat.size), {}, why);
}

void fail_to_meet_rank(const Seat& seat, int rank, std::string why) {
  throw RankFailed(Diagnostic{.code = "D302",
                              .where = {.rank = seat.rank, .operation = "connect"},
                              .what = fmt::format("rank {} failed", rank),
                              .why = std::move(why)},
                   rank);
}

void refuse_peer(const Seat& seat, std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D307",
                              .where = {.rank = seat.rank, .operation = "connect"},
                              .what = std::move(what),
                              .help = std::move(help)});
}

Joined join(const Seat& seat, Rendezvous& rendezvous, const SocketOptions& options) {
  if (seat.size < 1 || seat.rank < 0 || seat.rank >= seat.size) {
    throw InputError(
        Diagnostic{.code = "D300",
                   .where = {.operation = "connect"},
                   .what = fmt::format("there is no rank {} of {}", seat.rank, seat.size)});
  }
  Joining joining(seat, rendezvous, options);
  try {
    return joining.run();
  } catch (const Failure& failure) {
    joining.give_up({.culprit = failure.culprit().value_or(-1), .why = failure.diagnostic().what});
    throw;
  } catch (const std::exception& error) {
    joining.give_up({.culprit = seat.rank, .why = error.what()});
    throw;
  }
}

}  // namespace shiplap::comm
