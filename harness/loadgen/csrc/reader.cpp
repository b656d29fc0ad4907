// Reads the sockets of many streams on a thread of its own, without Python. See harness/loadgen/native.py.
//
// What comes is kept per stream as reads: bytes, and the kernel's time of arrival. Python is woken (by an eventfd) only
// for streams with something that cannot wait: any read while a stream is not quiet; of a quiet one, a read that does
// not have the usual end, a certain number of usual ones, the connection's end.
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr size_t kRead = 1 << 12, kMore = 1 << 16;  // bytes of one read: usually, and where there were as many
constexpr int kAtOnce = 64;                         // streams read while others wait for the lock
constexpr char kUsualEnd[] = "}\n\n\r\n";           // alike.USUAL_END
constexpr size_t kUsualBytes = sizeof(kUsualEnd) - 1;
constexpr int kOpen = 0, kEnded = -1;  // a stream's state: one of these, or the errno of what broke it

double seconds(const timespec& t) { return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec); }

double now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return seconds(t);
}

struct Reads {
  std::vector<char> wire;
  std::vector<int64_t> ends;   // of each read, in `wire`
  std::vector<double> times;   // CLOCK_MONOTONIC seconds
};

struct Stream {
  int fd = -1;
  std::atomic<bool> quiet{false};
  std::atomic<double> floor{0};        // nothing arrives before this
  std::atomic<int64_t> at_once{1};     // usual reads that are worth Python's time
  bool queued = false;                 // for Python
  bool watched = true;                 // by the epoll
  int state = kOpen;
  double last = 0;
  Reads reads, taken;
};

struct Taken {  // as native.py has it
  const char* wire;
  const int64_t* ends;
  const double* times;
  int64_t count, bytes;
  int64_t state;
};

class Reader {
 public:
  Reader()
      : epoll_(epoll_create1(EPOLL_CLOEXEC)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = nullptr;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, stop_, &event);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are Python's, and must wake its threads
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Reader() {
    const uint64_t one = 1;
    stopping_ = true;
    (void)!write(stop_, &one, sizeof one);
    thread_.join();
    close(epoll_), close(stop_), close(wake_);
  }

  int wake_fd() const { return wake_; }
  void set_wait(double wait) { wait_ = wait; }

  Stream* add(int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* stream = new Stream;
    stream->fd = fd;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = stream;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0) return stream;
    delete stream;
    return nullptr;
  }

  void remove(Stream* stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    unwatch(stream);
    ready_.erase(std::remove(ready_.begin(), ready_.end(), stream), ready_.end());
    delete stream;
  }

  int64_t ready(Stream** streams, int64_t most) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto count = std::min<int64_t>(most, static_cast<int64_t>(ready_.size()));
    for (int64_t i = 0; i < count; ++i) (streams[i] = ready_[i])->queued = false;
    ready_.erase(ready_.begin(), ready_.begin() + count);
    uint64_t drained;
    if (ready_.empty()) (void)!::read(wake_, &drained, sizeof drained);
    return count;
  }

  void take(Stream* stream, bool look, Taken* out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (look && stream->state == kOpen && read(stream, nullptr)) {
    }
    std::swap(stream->reads, stream->taken);
    stream->reads.wire.clear(), stream->reads.ends.clear(), stream->reads.times.clear();
    const Reads& taken = stream->taken;
    *out = {taken.wire.data(), taken.ends.data(), taken.times.data(), static_cast<int64_t>(taken.ends.size()),
            static_cast<int64_t>(taken.wire.size()), stream->state};
  }

 private:
  struct Moment {
    double now = ::now(CLOCK_MONOTONIC), ahead = ::now(CLOCK_REALTIME) - now;
  };

  void run() {
    epoll_event events[kAtOnce];
    while (!stopping_) {
      epoll_wait(epoll_, events, 1, -1);
      const double wait = wait_;
      if (wait > 0 && !stopping_) {
        timespec rest{0, static_cast<long>(wait * 1e9)};
        nanosleep(&rest, nullptr);
      }
      for (int count = kAtOnce; count == kAtOnce && !stopping_;) {
        const std::lock_guard<std::mutex> lock(mutex_);
        count = epoll_wait(epoll_, events, kAtOnce, 0);
        const Moment moment;
        for (int i = 0; i < count; ++i)
          if (events[i].data.ptr) read(static_cast<Stream*>(events[i].data.ptr), &moment);
      }
    }
  }

  // One read, or two where the first was full; whether anything came.
  bool read(Stream* stream, const Moment* moment) {
    for (size_t most = kRead;; most = kMore) {
      Reads& reads = stream->reads;
      char control[CMSG_SPACE(sizeof(timespec))];
      iovec part{buffer_, most};
      msghdr message{};
      message.msg_iov = &part, message.msg_iovlen = 1;
      message.msg_control = control, message.msg_controllen = sizeof control;
      const ssize_t got = recvmsg(stream->fd, &message, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return most == kMore;
      if (got <= 0) {
        stream->state = got < 0 ? errno : kEnded;
        unwatch(stream);
        queue(stream);
        return true;
      }
      reads.wire.insert(reads.wire.end(), buffer_, buffer_ + got);
      reads.ends.push_back(static_cast<int64_t>(reads.wire.size()));
      reads.times.push_back(stream->last = arrival(stream, message, moment));
      const bool usual = static_cast<size_t>(got) >= kUsualBytes &&
                         memcmp(buffer_ + got - kUsualBytes, kUsualEnd, kUsualBytes) == 0;
      if (!stream->quiet || !usual || static_cast<int64_t>(reads.ends.size()) >= stream->at_once) queue(stream);
      if (most == kMore || static_cast<size_t>(got) < most) return true;
    }
  }

  // When the bytes just read came in, between what came before them and now.
  double arrival(const Stream* stream, msghdr& message, const Moment* moment) const {
    const double floor = std::max(stream->last, stream->floor.load());
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (!header) return now(CLOCK_MONOTONIC);
    timespec stamp;
    memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
    if (moment) {
      const double time = seconds(stamp) - moment->ahead;
      if (floor <= time && time <= moment->now) return time;
    }
    const Moment here;  // it came after that moment, or the clock was set
    return std::min(here.now, std::max(seconds(stamp) - here.ahead, floor));
  }

  void unwatch(Stream* stream) {
    if (stream->watched) epoll_ctl(epoll_, EPOLL_CTL_DEL, stream->fd, nullptr);
    stream->watched = false;
  }

  void queue(Stream* stream) {
    if (stream->queued) return;
    stream->queued = true;
    if (ready_.empty()) {
      const uint64_t one = 1;
      (void)!write(wake_, &one, sizeof one);
    }
    ready_.push_back(stream);
  }

  const int epoll_, stop_, wake_;
  std::atomic<bool> stopping_{false};
  std::atomic<double> wait_{0};
  std::mutex mutex_;  // of all below, and of every stream
  std::vector<Stream*> ready_;
  char buffer_[kMore];
  std::thread thread_;
};

}  // namespace

extern "C" {
Reader* reader_new() { return new Reader; }
void reader_delete(Reader* reader) { delete reader; }
int reader_wake_fd(const Reader* reader) { return reader->wake_fd(); }
void reader_wait(Reader* reader, double wait) { reader->set_wait(wait); }
Stream* reader_add(Reader* reader, int fd) { return reader->add(fd); }
void reader_remove(Reader* reader, Stream* stream) { reader->remove(stream); }
int64_t reader_ready(Reader* reader, Stream** streams, int64_t most) { return reader->ready(streams, most); }
void reader_take(Reader* reader, Stream* stream, int look, Taken* out) { reader->take(stream, look != 0, out); }
void stream_expect(Stream* stream, double floor) {
  stream->quiet = false;
  stream->floor = floor;
}
void stream_quiet(Stream* stream, int quiet, int64_t at_once) {
  stream->at_once = at_once;
  stream->quiet = quiet != 0;
}
}
