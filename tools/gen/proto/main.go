// Command proto compiles a .proto file to Go.
//
//	proto FILE.proto
//
// It writes FILE.pb.go beside the file, and FILE.codec.go with codecs without reflection for its
// messages. What protobuf knows of the types of messages is made at the first use of reflection
// (see late). The compiler is a Go module pinned in tools/gen/go.mod,
// so the result is the same on every machine, and protoc need not be installed.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: proto FILE.proto")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "proto:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	dir, name := filepath.Split(path)
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{dir}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, name)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{name},
		Parameter:      proto.String("paths=source_relative"),
		ProtoFile:      []*descriptorpb.FileDescriptorProto{protoutil.ProtoFromFileDescriptor(files[0])},
	}
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	// GOFLAGS do not hold for go tool, which would compile the standard library once more.
	cmd := exec.CommandContext(ctx, "go", "run", "google.golang.org/protobuf/cmd/protoc-gen-go")
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("protoc-gen-go: %w", err)
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(out, response); err != nil {
		return fmt.Errorf("answer of protoc-gen-go: %w", err)
	}
	if response.Error != nil {
		return fmt.Errorf("protoc-gen-go: %s", response.GetError())
	}
	if len(response.File) != 1 {
		return fmt.Errorf("protoc-gen-go wrote %d files", len(response.File))
	}
	source, err := late(response.File[0].GetContent())
	if err != nil {
		return fmt.Errorf("%s: %w", response.File[0].GetName(), err)
	}
	codec, err := generateCodec(request)
	if err != nil {
		return err
	}
	stem := filepath.Join(dir, strings.TrimSuffix(name, ".proto"))
	return errors.Join(os.WriteFile(stem+".pb.go", []byte(source), 0o644), os.WriteFile(stem+".codec.go", codec, 0o644))
}
