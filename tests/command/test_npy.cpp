// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <flashjit/error.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "cli/io/npy.h"
#include "tests/support/temporary_directory.h"

namespace {

using namespace flashjit;
using cli::npy_bytes;
using cli::read_npy;

class NpyFile {
 public:
  explicit NpyFile(const std::string& bytes) : path_((directory_.path() / "a.npy").string()) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  const std::string& path() const { return path_; }
  HostTensor read(DType dtype = DType::f32) const { return read_npy(path_, dtype); }
  // The message of the Error that reading ends with; it always begins with the path.
  std::string problem(DType dtype = DType::f32) const {
    try {
      read(dtype);
    } catch (const Error& error) {
      CHECK(std::string(error.what()).rfind(path_ + ": ", 0) == 0);
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      return error.what();
    }
    return {};
  }

 private:
  tests::TemporaryDirectory directory_;
  std::string path_;
};

template <typename T>
std::string raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string with_header(const std::string& header, const std::string& data, int major = 1) {
  std::string bytes = std::string("\x93NUMPY") + static_cast<char>(major) + '\0';
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  for (std::size_t i = 0; i < length_bytes; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape, bool fortran = false) {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}\n", descr, fortran ? "True" : "False",
                     shape);
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("what is written is read back unchanged") {
  for (const DType dtype : {DType::f16, DType::f32}) {
    for (const Dims& shape : {Dims{2, 3, 1, 8}, Dims{5}, Dims{}, Dims{0, 4}}) {
      const HostTensor tensor = HostTensor::random_normal(dtype, shape, 7);
      const HostTensor back = NpyFile(npy_bytes(tensor)).read(dtype);
      CHECK(back.shape() == shape);
      CHECK(back.to_doubles() == tensor.to_doubles());
    }
  }
}

TEST_CASE("bf16 is written as float32 without loss") {
  const HostTensor tensor = HostTensor::random_normal(DType::bf16, {4, 8}, 7);
  const std::string bytes = npy_bytes(tensor);
  CHECK(mentions(bytes, "'descr': '<f4'"));
  CHECK(NpyFile(bytes).read(DType::bf16).to_doubles() == tensor.to_doubles());
}

TEST_CASE("the written header is what NumPy writes") {
  const std::string bytes = npy_bytes(HostTensor(DType::f16, {3}));
  const std::string header = "{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }";
  CHECK(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\x00", 8));
  CHECK(bytes.substr(10, header.size()) == header);
  CHECK((bytes.size() - 3 * 2) % 64 == 0);
  CHECK(bytes[bytes.size() - 3 * 2 - 1] == '\n');
  CHECK(mentions(npy_bytes(HostTensor(DType::f32, {2, 3})), "'shape': (2, 3), }"));
  CHECK(mentions(npy_bytes(HostTensor(DType::f32, {})), "'shape': (), }"));
}

TEST_CASE("Fortran order is turned into C order") {
  // a[i][j][k] = 100 i + 10 j + k of shape (2, 3, 2), first index fastest in the file.
  std::vector<float> values;
  std::vector<double> expected;
  for (int k = 0; k < 2; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) values.push_back(static_cast<float>(100 * i + 10 * j + k));
    }
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 2; ++k) expected.push_back(100 * i + 10 * j + k);
    }
  }
  CHECK(NpyFile(with_header(header_of("<f4", "(2, 3, 2)", true), raw(values))).read().to_doubles() == expected);
}

TEST_CASE("headers of versions 2.0 and 3.0, other spacing and key orders are read") {
  const std::string data = raw(std::vector<float>{1, 2});
  for (const int major : {1, 2, 3}) {
    const NpyFile file(with_header(header_of("<f4", "(2,)"), data, major));
    CHECK(file.read().to_doubles() == std::vector<double>{1, 2});
  }
  const NpyFile other(with_header("{\"shape\":(1,2),\"descr\":\"<f4\",\"fortran_order\":True}", data));
  CHECK(other.read().shape() == Dims{1, 2});
}

TEST_CASE("e4m3 and e5m2 come from their bytes, or are rounded to, and are written as bytes") {
  const std::string all = [] {
    std::string bytes;
    for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
    return bytes;
  }();
  for (const DType dtype : {DType::e4m3, DType::e5m2})
    for (const char* descr : {"|u1", "|V1"}) {
      const HostTensor read = NpyFile(with_header(header_of(descr, "(256,)"), all)).read(dtype);
      CHECK(read.dtype() == dtype);
      CHECK(std::string(static_cast<const char*>(read.data()), 256) == all);
      CHECK(NpyFile(npy_bytes(read)).read(dtype).dtype() == dtype);
    }
  const std::vector<float> values{1.0f, -0.5f, 1.06f, 500.0f};
  const HostTensor rounded = NpyFile(with_header(header_of("<f4", "(4,)"), raw(values))).read(DType::e4m3);
  CHECK(rounded.to_doubles() == std::vector<double>{1, -0.5, 1, 448});
  CHECK(NpyFile(npy_bytes(rounded)).read(DType::e4m3).to_doubles() == rounded.to_doubles());
  const HostTensor of_e5m2 = NpyFile(with_header(header_of("<f4", "(4,)"), raw(values))).read(DType::e5m2);
  CHECK(of_e5m2.to_doubles() == std::vector<double>{1, -0.5, 1, 512});
  CHECK(mentions(NpyFile(with_header(header_of("|i1", "(256,)"), all)).problem(DType::e4m3),
                 "must be bytes of e4m3, or little-endian float16"));
  CHECK(mentions(NpyFile(with_header(header_of("|i1", "(256,)"), all)).problem(DType::e5m2), "must be bytes of e5m2"));
  CHECK(mentions(NpyFile(with_header(header_of("|u1", "(256,)"), all)).problem(DType::f32), "were '|u1'"));
}

TEST_CASE("float64 is rounded once, not by way of float32") {
  // Just above half a step of f16: by way of float32 it would be a tie, which rounds down to 1.
  const double value = 1 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40);
  const NpyFile file(with_header(header_of("<f8", "(1,)"), raw(std::vector<double>{value})));
  CHECK(file.read(DType::f16).to_doubles()[0] == 1 + std::ldexp(1.0, -10));
}

TEST_CASE("a value that would become infinite is refused, infinity and NaN are kept") {
  const double infinity = std::numeric_limits<double>::infinity();
  const NpyFile large(with_header(header_of("<f8", "(2,)"), raw(std::vector<double>{1, 70000})));
  CHECK(mentions(large.problem(DType::f16), "the values must fit f16, one is 70000"));
  CHECK(large.read(DType::bf16).to_doubles()[1] == doctest::Approx(70000).epsilon(0.01));
  const NpyFile special(with_header(header_of("<f8", "(2,)"), raw(std::vector<double>{-infinity, std::nan("")})));
  CHECK(special.read(DType::f16).to_doubles()[0] == -infinity);
  CHECK(std::isnan(special.read(DType::f16).to_doubles()[1]));
}

TEST_CASE("whole numbers are read exactly, in each of their types") {
  constexpr std::int64_t kWide = (std::int64_t{1} << 62) + 1;  // no double
  const NpyFile wide(with_header(header_of("<i8", "(2, 2)", true), raw<std::int64_t>({kWide, 0, -kWide, 1})));
  const HostTensor tensor = wide.read(DType::i64);
  CHECK(tensor.shape() == Dims{2, 2});
  std::int64_t values[4];
  std::memcpy(values, tensor.data(), sizeof values);
  CHECK(values[0] == kWide);
  CHECK(values[1] == -kWide);
  CHECK(values[2] == 0);
  CHECK(values[3] == 1);
  CHECK(mentions(wide.problem(DType::i32), "the values must fit i32, one is 4611686018427387905"));

  const NpyFile narrow(with_header(header_of("<i4", "(3,)"), raw<std::int32_t>({-7, 0, 1})));
  for (const DType dtype : {DType::i32, DType::i64})
    CHECK(narrow.read(dtype).to_doubles() == std::vector<double>{-7, 0, 1});
  CHECK(mentions(narrow.problem(DType::boolean), "the values must fit boolean, one is -7"));
  const NpyFile flags(with_header(header_of("|b1", "(3,)"), std::string("\1\0\1", 3)));
  for (const DType dtype : {DType::boolean, DType::i32, DType::i64})
    CHECK(flags.read(dtype).to_doubles() == std::vector<double>{1, 0, 1});
  CHECK(mentions(flags.problem(DType::f32), "must be little-endian float16, float32 or float64"));
  const NpyFile real(with_header(header_of("<f4", "(1,)"), raw<float>({1})));
  CHECK(mentions(real.problem(DType::i32),
                 "must be bool or little-endian int32 or int64 ('|b1', '<i4', '<i8'), were '<f4'"));
}

TEST_CASE("without a dtype elements keep their own, and are written as they were read") {
  for (const auto& [descr, dtype] : {std::pair("<f2", DType::f16),
                                     {"<f4", DType::f32},
                                     {"<i4", DType::i32},
                                     {"<i8", DType::i64},
                                     {"|b1", DType::boolean}}) {
    CAPTURE(std::string(descr));
    const NpyFile file(with_header(header_of(descr, "(3,)"), std::string(3 * size_of(dtype), '\1')));
    const HostTensor tensor = read_npy(file.path());
    CHECK(tensor.dtype() == dtype);
    const NpyFile again(npy_bytes(tensor));
    CHECK(read_npy(again.path()).dtype() == dtype);
    CHECK(std::memcmp(read_npy(again.path()).data(), tensor.data(), 3 * size_of(dtype)) == 0);
  }
  const NpyFile wide(with_header(header_of("<f8", "(1,)"), raw<double>({0.1})));
  CHECK(read_npy(wide.path()).dtype() == DType::f32);
  const NpyFile other(with_header(header_of("<u2", "(1,)"), std::string(2, '\0')));
  CHECK_THROWS_WITH_AS(read_npy(other.path()), doctest::Contains("float32 or float64, were '<u2'"), Error);
}

TEST_CASE("every truncation and every extension of a file is refused") {
  const std::string bytes = npy_bytes(HostTensor::random_normal(DType::f32, {2, 3}, 7));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    CHECK(!NpyFile(bytes.substr(0, length)).problem().empty());
  }
  CHECK(mentions(NpyFile(bytes + 'x').problem(), "needs 24 bytes of data, 25 follow"));
}

TEST_CASE("a changed byte gives an error or an array of the size of the file, never anything else") {
  const std::string bytes = npy_bytes(HostTensor::random_normal(DType::f32, {2, 3}, 7));
  int refused = 0;
  for (std::size_t i = 0; i < bytes.size() - 24; ++i) {
    for (const char replacement : {'\0', ' ', '9', '(', '\'', '\xff'}) {
      std::string changed = bytes;
      changed[i] = replacement;
      const NpyFile file(changed);
      if (!file.problem().empty()) {
        ++refused;
      } else {
        CHECK(file.read().element_count() == 6);
      }
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("a header that is not the expected dictionary is refused with its reason") {
  const std::string data = raw(std::vector<float>{1, 2});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "must have '{'"},
      {"hello", "must have '{'"},
      {"{}", "lacks the key 'descr'"},
      {"{'descr': '<f4', 'fortran_order': False}", "lacks the key 'shape'"},
      {"{'descr': '<f4', 'shape': (2,)}", "lacks the key 'fortran_order'"},
      {header_of("<f4", "(2,)") + "x", "after the dictionary"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "twice"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 'x'}", "unknown key 'more'"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", "True or False"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': [2]}", "must have '('"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", "must have a size"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,)}", "must have ')'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,}", "must have a size"},
      {"{'descr': '<f4", "string without end"},
      {"{'descr': <f4", "quoted string"},
      {"{'descr' '<f4'", "must have ':'"},
      {"{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2,)}", "describes records"},
      {std::string("{'de\0scr': '<f4'}", 17), "unprintable"}};
  for (const auto& [header, reason] : cases) {
    const std::string problem = NpyFile(with_header(header, data)).problem();
    CAPTURE(problem);
    CHECK(mentions(problem, reason));
  }
}

TEST_CASE("other element types are refused by name") {
  for (const char* descr : {"|O", ">f4", "<i4", "<c8", "|V2", "<f16", "f4", ""}) {
    const std::string problem = NpyFile(with_header(header_of(descr, "(2,)"), std::string(8, '\0'))).problem();
    CAPTURE(descr);
    CHECK(mentions(problem, "must be little-endian float16, float32 or float64"));
    CHECK(mentions(problem, fmt::format("were '{}'", descr)));
  }
}

TEST_CASE("shapes that no file could hold allocate nothing") {
  const std::string data(8, '\0');
  for (const char* shape : {"(4611686018427387904, 4)", "(9223372036854775807,)", "(65536, 65536, 65536, 65536)",
                            "(3,)", "(1000000000000, 1000000000000, 0)"}) {
    CAPTURE(shape);
    CHECK(mentions(NpyFile(with_header(header_of("<f4", shape), data)).problem(), "needs"));
  }
  CHECK(mentions(NpyFile(with_header(header_of("<f4", "(9223372036854775808,)"), data)).problem(),
                 "does not fit 64 bits"));
  CHECK(mentions(NpyFile(with_header(header_of("<f4", "(1,1,1,1,1,1,1,1,2)"), data)).problem(), "has 9 dimensions"));
}

TEST_CASE("a header length beyond reason or an unknown version is refused") {
  std::string bytes = with_header(header_of("<f4", "(2,)"), std::string(8, '\0'), 2);
  bytes[11] = '\x7f';
  CHECK(mentions(NpyFile(bytes).problem(), "must have at most 65536 bytes"));
  CHECK(mentions(NpyFile(with_header("{}", "", 4)).problem(), "must be 1.0, 2.0 or 3.0, was 4.0"));
  CHECK(mentions(NpyFile("PK\3\4 this is a .npz").problem(), "begins with other bytes"));
}

TEST_CASE("what is not a file is refused") {
  const tests::TemporaryDirectory directory;
  CHECK_THROWS_WITH_AS(read_npy(directory.path().string(), DType::f32),
                       (directory.path().string() + ": must be a .npy file, is not a regular file").c_str(), Error);
  const std::string missing = (directory.path() / "missing.npy").string();
  CHECK_THROWS_WITH_AS(read_npy(missing, DType::f32), (missing + ": must be a .npy file, does not exist").c_str(),
                       Error);
}
