// SPDX-License-Identifier: Apache-2.0
#include "generator/inflate.h"

#include <fmt/format.h>

#include <zlib.h>

#include <new>

#include "flashjit/error.h"

namespace flashjit::generator {
namespace {

class InflateStream {
 public:
  explicit InflateStream(std::span<const unsigned char> deflated) {
    constexpr int kWithoutHeader = -MAX_WBITS;
    stream_.next_in = const_cast<Bytef*>(deflated.data());  // zlib only reads it
    stream_.avail_in = static_cast<uInt>(deflated.size());
    if (inflateInit2(&stream_, kWithoutHeader) != Z_OK) throw std::bad_alloc();
  }
  ~InflateStream() { inflateEnd(&stream_); }
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;

  std::string read(const DeflatedFile& file) {
    std::string text(file.bytes, '\0');
    stream_.next_out = reinterpret_cast<Bytef*>(text.data());
    stream_.avail_out = static_cast<uInt>(text.size());
    const int status = ::inflate(&stream_, Z_SYNC_FLUSH);
    if (status == Z_MEM_ERROR) throw std::bad_alloc();
    if (stream_.avail_out != 0)
      throw Error(ErrorCode::io, fmt::format("{}: must have {} bytes in the library, {} are missing", file.path,
                                             file.bytes, stream_.avail_out));
    return text;
  }

 private:
  z_stream stream_ = {};
};

}  // namespace

std::map<std::string, std::string, std::less<>> inflate(std::span<const DeflatedFile> files,
                                                        std::span<const unsigned char> deflated) {
  InflateStream stream(deflated);
  std::map<std::string, std::string, std::less<>> texts;
  for (const DeflatedFile& file : files) texts.emplace(file.path, stream.read(file));
  return texts;
}

}  // namespace flashjit::generator
