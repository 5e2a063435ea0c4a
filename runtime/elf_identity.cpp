// SPDX-License-Identifier: Apache-2.0
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>

#include "cache/digest.h"
#include "runtime/nvrtc_search.h"

namespace flashjit::runtime {
namespace {

constexpr std::size_t kIdBytes = 8;
constexpr std::size_t kEnds = 64 * 1024;        // hashed at both ends of a library without a build id
constexpr std::size_t kMaxNoteBytes = 1 << 20;  // a sane limit on what a damaged header can ask for
constexpr std::size_t kMaxSegments = 1024;

// Empty unless all the bytes could be read.
std::string read_at(std::ifstream& file, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  return static_cast<std::size_t>(file.gcount()) == size ? bytes : std::string();
}

template <typename T>
std::optional<T> read_struct(std::string_view bytes, std::size_t offset) {
  if (bytes.size() < sizeof(T) || offset > bytes.size() - sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

constexpr std::size_t padded(std::size_t size) { return (size + 3) / 4 * 4; }

// The first bytes of NT_GNU_BUILD_ID in a note segment, as hex.
std::string build_id(std::string_view notes) {
  std::size_t offset = 0;
  while (const auto note = read_struct<Elf64_Nhdr>(notes, offset)) {
    const std::size_t name = offset + sizeof(Elf64_Nhdr);
    const std::size_t description = name + padded(note->n_namesz);
    const std::size_t next = description + padded(note->n_descsz);
    if (next > notes.size()) break;
    if (note->n_type == NT_GNU_BUILD_ID && note->n_descsz >= kIdBytes &&
        notes.substr(name, 4) == std::string_view("GNU\0", 4)) {
      std::string hex;
      for (std::size_t i = 0; i < kIdBytes; ++i) {
        hex += fmt::format("{:02x}", static_cast<unsigned char>(notes[description + i]));
      }
      return hex;
    }
    offset = next;
  }
  return {};
}

}  // namespace

std::string library_identity(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const auto header = read_struct<Elf64_Ehdr>(read_at(file, 0, sizeof(Elf64_Ehdr)), 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return {};
  if (header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_phentsize == sizeof(Elf64_Phdr)) {
    const std::size_t count = std::min<std::size_t>(header->e_phnum, kMaxSegments);
    const std::string segments = read_at(file, header->e_phoff, count * sizeof(Elf64_Phdr));
    for (std::size_t i = 0; i < count; ++i) {
      const auto segment = read_struct<Elf64_Phdr>(segments, i * sizeof(Elf64_Phdr));
      if (!segment || segment->p_type != PT_NOTE || segment->p_filesz > kMaxNoteBytes) continue;
      const std::string id = build_id(read_at(file, segment->p_offset, segment->p_filesz));
      if (!id.empty()) return "nvrtc-" + id;
    }
  }
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return {};
  const std::size_t part = std::min<std::uintmax_t>(size, kEnds);
  const cache::Digest digest = cache::Hasher()
                                   .add("size", std::to_string(size))
                                   .add("head", read_at(file, 0, part))
                                   .add("tail", read_at(file, size - part, part))
                                   .finish();
  return "nvrtc-" + digest.hex().substr(0, 2 * kIdBytes);
}

}  // namespace flashjit::runtime
