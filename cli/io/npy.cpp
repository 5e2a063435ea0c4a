// SPDX-License-Identifier: Apache-2.0
#include "cli/io/npy.h"

#include <flashjit/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "cli/io/npy_header.h"

namespace flashjit::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied as they stand in the file");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kPrefix = 10;            // magic, version, 16-bit header length
constexpr std::size_t kLongPrefix = 12;        // versions 2.0 and 3.0: 32-bit header length
constexpr std::size_t kLongestHeader = 65536;  // nothing with so few fields needs more
constexpr std::size_t kAlignment = 64;         // of the data in files that we write

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, path + ": " + what);
}

// A file whose size is known and of which no more is read than that.
class File {
 public:
  explicit File(const std::string& path) : path_(path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) throw Error(ErrorCode::io, path + ": must be a .npy file, does not exist");
    if (!std::filesystem::is_regular_file(status)) fail(path, "must be a .npy file, is not a regular file");
    size_ = std::filesystem::file_size(path, error);
    stream_.open(path, std::ios::binary);
    if (error || !stream_) throw Error(ErrorCode::io, fmt::format("{}: {}", path, std::strerror(errno)));
  }

  std::string read(std::size_t count, const char* what) {
    if (count > size_ - position_) {
      fail(path_, fmt::format("ends within the {} ({} bytes long)", what, size_));
    }
    std::string bytes(count, '\0');
    stream_.read(bytes.data(), static_cast<std::streamsize>(count));
    if (static_cast<std::size_t>(stream_.gcount()) != count) throw Error(ErrorCode::io, path_ + ": cannot be read");
    position_ += count;
    return bytes;
  }
  std::size_t remaining() const { return size_ - position_; }

 private:
  const std::string& path_;
  std::ifstream stream_;
  std::size_t size_ = 0, position_ = 0;
};

std::size_t little_endian(std::string_view bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

NpyHeader read_header(File& file, const std::string& path) {
  std::string prefix = file.read(kPrefix, "magic string");
  if (prefix.compare(0, kMagic.size(), kMagic) != 0) fail(path, "must be a .npy file, begins with other bytes");
  const int major = static_cast<unsigned char>(prefix[6]), minor = static_cast<unsigned char>(prefix[7]);
  if (major < 1 || major > 3 || minor != 0) {
    fail(path, fmt::format("the .npy version must be 1.0, 2.0 or 3.0, was {}.{}", major, minor));
  }
  if (major > 1) prefix += file.read(kLongPrefix - kPrefix, "header length");
  const std::size_t length = little_endian(std::string_view(prefix).substr(8));
  if (length > kLongestHeader) {
    fail(path, fmt::format("the .npy header must have at most {} bytes, has {}", kLongestHeader, length));
  }
  return parse_npy_header(path, file.read(length, ".npy header"));
}

// Those that tensors may have, too.
constexpr std::pair<const char*, DType> kElements[] = {
    {"<f2", DType::f16}, {"<f4", DType::f32}, {"<i4", DType::i32}, {"<i8", DType::i64}, {"|b1", DType::boolean}};

constexpr const char* kBytes = "|u1";  // of e4m3 and e5m2, which files do not tell from others

// What a file says of elements that it has as they are.
const char* descr_of(DType dtype) {
  for (const auto& [descr, of_file] : kElements)
    if (of_file == dtype) return descr;
  return kBytes;
}

bool is_whole(DType dtype) { return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::boolean; }

std::size_t whole_element_size(const std::string& path, const std::string& descr) {
  if (descr == "|b1") return 1;
  if (descr == "<i4") return 4;
  if (descr == "<i8") return 8;
  fail(path, fmt::format("the elements must be bool or little-endian int32 or int64 ('|b1', '<i4', '<i8'), were '{}'",
                         descr));
}

std::size_t element_size(const std::string& path, const std::string& descr, DType dtype) {
  if (is_whole(dtype)) return whole_element_size(path, descr);
  if (descr == "<f2") return 2;
  if (descr == "<f4") return 4;
  if (descr == "<f8") return 8;
  const bool may_be_bytes = size_of(dtype) == 1;
  if (may_be_bytes && (descr == kBytes || descr == "|V1")) return 1;
  fail(path,
       fmt::format("the elements must be {}little-endian float16, float32 or float64 ({}'<f2', '<f4', '<f8'), were "
                   "'{}'",
                   may_be_bytes ? fmt::format("bytes of {}, or ", to_string(dtype)) : "",
                   may_be_bytes ? "'|u1', '|V1', " : "", descr));
}

// A size of 0 makes the array empty whatever the others are; they are bounded so that strides do not overflow either.
constexpr std::size_t kMostOfEmpty = std::size_t{1} << 48;

std::size_t count_elements(const std::string& path, const Dims& shape, std::size_t element_bytes,
                           std::size_t remaining) {
  bool empty = false;
  for (const std::int64_t size : shape) empty = empty || size == 0;
  const std::size_t most = empty ? kMostOfEmpty : remaining / element_bytes;
  std::size_t count = 1;
  for (const std::int64_t size : shape) {
    if (size == 0) continue;
    if (static_cast<std::size_t>(size) > most / count) {
      fail(path, fmt::format("shape {} needs more than the {} bytes of data that follow", to_string(shape), remaining));
    }
    count *= static_cast<std::size_t>(size);
  }
  if (empty) count = 0;
  if (count * element_bytes != remaining) {
    fail(path,
         fmt::format("shape {} needs {} bytes of data, {} follow", to_string(shape), count * element_bytes, remaining));
  }
  return count;
}

double element_at(const std::string& bytes, std::size_t size, std::size_t index) {
  if (size == 2) return load_element(bytes.data(), DType::f16, static_cast<std::int64_t>(index));
  if (size == 4) return load_element(bytes.data(), DType::f32, static_cast<std::int64_t>(index));
  double value;
  std::memcpy(&value, bytes.data() + index * size, size);
  return value;
}

void store_real(const std::string& path, HostTensor& tensor, std::size_t index, double value) {
  const auto at = static_cast<std::int64_t>(index);
  store_element(tensor.data(), tensor.dtype(), at, value);
  if (std::isfinite(value) && !std::isfinite(load_element(tensor.data(), tensor.dtype(), at)))
    fail(path, fmt::format("the values must fit {}, one is {:g}", to_string(tensor.dtype()), value));
}

std::int64_t whole_element_at(const std::string& bytes, std::size_t size, std::size_t index) {
  if (size == 1) return bytes[index] != 0 ? 1 : 0;
  std::int32_t narrow = 0;
  std::int64_t wide = 0;
  std::memcpy(size == 4 ? static_cast<void*>(&narrow) : &wide, bytes.data() + index * size, size);
  return size == 4 ? narrow : wide;
}

// Not as doubles, which have 53 bits.
void store_whole(const std::string& path, HostTensor& tensor, std::size_t index, std::int64_t value) {
  if (tensor.dtype() == DType::i64) {
    std::memcpy(static_cast<std::int64_t*>(tensor.data()) + index, &value, sizeof value);
    return;
  }
  using Limits = std::numeric_limits<std::int32_t>;
  const bool fits =
      tensor.dtype() == DType::i32 ? value >= Limits::min() && value <= Limits::max() : value == 0 || value == 1;
  if (!fits) fail(path, fmt::format("the values must fit {}, one is {}", to_string(tensor.dtype()), value));
  store_element(tensor.data(), tensor.dtype(), static_cast<std::int64_t>(index), static_cast<double>(value));
}

// Where the elements of a Fortran-order array lie when they are visited in C order.
class FortranOrder {
 public:
  explicit FortranOrder(const Dims& shape) : shape_(shape), strides_(shape), index_(shape) {
    std::int64_t stride = 1;
    for (int i = 0; i < shape.size(); ++i) {
      strides_[i] = stride;
      stride *= shape[i];
      index_[i] = 0;
    }
  }
  std::size_t next() {
    const std::size_t position = static_cast<std::size_t>(position_);
    for (int i = shape_.size() - 1; i >= 0; --i) {
      position_ += strides_[i];
      if (++index_[i] < shape_[i]) break;
      position_ -= strides_[i] * shape_[i];
      index_[i] = 0;
    }
    return position;
  }

 private:
  Dims shape_, strides_, index_;
  std::int64_t position_ = 0;
};

}  // namespace

HostTensor read_npy(const std::string& path, DType dtype) {
  File file(path);
  const NpyHeader header = read_header(file, path);
  const std::size_t size = element_size(path, header.descr, dtype);
  const std::size_t count = count_elements(path, header.shape, size, file.remaining());
  const std::string bytes = file.read(count * size, "data");
  HostTensor tensor(dtype, header.shape);
  FortranOrder fortran(header.shape);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = header.fortran_order ? fortran.next() : i;
    if (is_whole(dtype))
      store_whole(path, tensor, i, whole_element_at(bytes, size, at));
    else if (size == 1)
      static_cast<char*>(tensor.data())[i] = bytes[at];
    else
      store_real(path, tensor, i, element_at(bytes, size, at));
  }
  return tensor;
}

HostTensor read_npy(const std::string& path) {
  File file(path);
  const std::string descr = read_header(file, path).descr;
  if (descr == "<f8") return read_npy(path, DType::f32);
  for (const auto& [of_file, dtype] : kElements)
    if (descr == of_file) return read_npy(path, dtype);
  fail(path, fmt::format("the elements must be bool, or little-endian int32, int64, float16, float32 or float64, were "
                         "'{}'",
                         descr));
}

std::string npy_bytes(const HostTensor& tensor) {
  const HostTensor elements = tensor.dtype() == DType::bf16 ? tensor.converted_to(DType::f32) : tensor;
  std::string shape;
  for (const std::int64_t size : tensor.shape()) shape += fmt::format("{}, ", size);
  if (!shape.empty()) shape.resize(shape.size() - (tensor.shape().size() == 1 ? 1 : 2));  // (3,) but (2, 3)
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr_of(elements.dtype()), shape);
  header.append(kAlignment - 1 - (kPrefix + header.size()) % kAlignment, ' ');
  header += '\n';
  std::string bytes(kMagic);
  bytes += {'\1', '\0', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  bytes += header;
  bytes.append(static_cast<const char*>(elements.data()), elements.element_count() * size_of(elements.dtype()));
  return bytes;
}

}  // namespace flashjit::cli
