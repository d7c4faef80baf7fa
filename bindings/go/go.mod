module github.com/libkvcache/libkvcache/bindings/go

go 1.19
