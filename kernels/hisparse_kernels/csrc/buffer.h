#pragma once
#include <cstddef>
#include <cstdlib>
#include <new>

namespace hisparse {

// Scratch of one thread that grows and is never shrunk; contents are unspecified unless zeroed.
template <class T>
class Buffer {
 public:
  T* at_least(size_t count, bool zeroed = false) {
    if (count > size_) {
      std::free(data_);
      size_ = count + count / 4;
      data_ = static_cast<T*>(zeroed ? std::calloc(size_, sizeof(T)) : std::malloc(size_ * sizeof(T)));
      if (!data_) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_;
  }
  size_t size() const { return size_; }
  ~Buffer() { std::free(data_); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hisparse
